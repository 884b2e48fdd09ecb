"""Our changes to the Horovod 0.28.1 source, declared as data.

Each patch has a reason and the versions to which it applies; `select` chooses the patches of a
build. An edit replaces a text that must occur exactly once in the file, so an unexpected source is
an error and is never patched in part.

Measurements showed that the generated flatbuffers headers, and TensorFlow's ``mpi_ops.cc`` up to
TensorFlow 2.21, need no patch.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass

_RELEASE = re.compile(r"\d+(?:\.\d+)*")


def release(version: str) -> tuple[int, ...]:
    """The numbers at the start of a version, without trailing zeros.

    For ``"2.13.0+cpu"`` the numbers are ``(2, 13)``. Local parts (``+cpu``) and pre-release marks
    are ignored. The `packaging` distribution is not used, because it may be missing, and this
    package must then report so.
    """
    match = _RELEASE.match(version)
    numbers = [int(number) for number in match.group().split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


@dataclass(frozen=True)
class VersionRange:
    """Versions from one on, up to but without another.

    Attributes:
        at_least: The first version inside; None for no lower end.
        below: The first version outside again; None for no upper end.
    """

    at_least: str | None = None
    below: str | None = None

    def __contains__(self, version: str) -> bool:
        numbers = release(version)
        if self.at_least is not None and numbers < release(self.at_least):
            return False
        return self.below is None or numbers < release(self.below)

    def __str__(self) -> str:
        ends = [
            f">= {self.at_least}" if self.at_least is not None else "",
            f"< {self.below}" if self.below is not None else "",
        ]
        return ", ".join(end for end in ends if end) or "any version"


ANY = VersionRange()
"""Every version."""


@dataclass(frozen=True)
class Edit:
    """One replacement in one file.

    Attributes:
        path: The file, relative to the source's root.
        old: Text that occurs exactly once in it.
        new: The replacement.
    """

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Target:
    """The properties of a build that patches depend on.

    Attributes:
        python: Version of the interpreter.
        torch: Version of PyTorch; None where its binding is left out.
        tensorflow: Version of TensorFlow; None where its binding is left out.
        nccl: Whether the GPU operations are built.
        open_mpi: Version of Open MPI; None where the MPI is another.
    """

    python: str
    torch: str | None
    tensorflow: str | None
    nccl: bool
    open_mpi: str | None


@dataclass(frozen=True)
class Patch:
    """One change, for one reason.

    Attributes:
        name: Short name.
        why: The reason, one or two sentences.
        edits: The replacements.
        python: Versions of Python it is for.
        torch: Versions of PyTorch it is for; None where it does not depend on PyTorch.
        tensorflow: Versions of TensorFlow it is for; None where it does not depend on it.
        nccl: Builds it is for: with NCCL, without, or (None) both.
        open_mpi: Versions of Open MPI it is for; None where it does not depend on it.
    """

    name: str
    why: str
    edits: tuple[Edit, ...]
    python: VersionRange = ANY
    torch: VersionRange | None = None
    tensorflow: VersionRange | None = None
    nccl: bool | None = None
    open_mpi: VersionRange | None = None

    def applies(self, target: Target) -> bool:
        """Whether a build takes this patch."""
        return (
            target.python in self.python
            and _covers(self.torch, target.torch)
            and _covers(self.tensorflow, target.tensorflow)
            and self.nccl in (None, target.nccl)
            and _covers(self.open_mpi, target.open_mpi)
        )

    @property
    def condition(self) -> str:
        """The conditions in words."""
        parts = [
            f"{name} {versions}"
            for name, versions in (
                ("Python", None if self.python == ANY else self.python),
                ("PyTorch", self.torch),
                ("TensorFlow", self.tensorflow),
                ("Open MPI", self.open_mpi),
            )
            if versions is not None
        ]
        if self.nccl is not None:
            parts.append("with NCCL" if self.nccl else "without NCCL")
        return "; ".join(parts) or "every build"


def _covers(versions: VersionRange | None, built: str | None) -> bool:
    return versions is None or (built is not None and built in versions)


def _torch_standard(standard: int) -> tuple[Edit, ...]:
    # The top file is for gloo: gloo's constants are inline in C++17, and a library of mixed C++14
    # and C++17 parts defines the constants twice.
    return tuple(
        Edit(path, "set(CMAKE_CXX_STANDARD 14)", f"set(CMAKE_CXX_STANDARD {standard})")
        for path in ("CMakeLists.txt", "horovod/torch/CMakeLists.txt")
    )


PATCHES: tuple[Patch, ...] = (
    Patch(
        name="torch-cxx17",
        why="The headers of PyTorch 2.1 and later need C++17; Horovod asks for C++14.",
        edits=_torch_standard(17),
        torch=VersionRange("2.1", "2.13"),
    ),
    Patch(
        name="torch-cxx20",
        why="PyTorch's own extension builder asks for C++20 by now (seen in 2.13), so that is what "
        "its headers are tested with.",
        edits=_torch_standard(20),
        torch=VersionRange("2.13"),
    ),
    Patch(
        name="missing-includes",
        why="GCC 13 and later no longer include these headers by accident; with older compilers "
        "the lines change nothing.",
        edits=(
            Edit(
                "horovod/common/common.h",
                "#include <memory>\n#include <string>\n",
                "#include <memory>\n#include <stdexcept>\n#include <string>\n",
            ),
            Edit(
                "horovod/common/group_table.h",
                "#include <queue>\n",
                "#include <queue>\n#include <string>\n",
            ),
        ),
    ),
    Patch(
        name="ninja",
        why="The build is driven through Ninja, which counts its steps and comes as a wheel; the "
        "argument VERBOSE=1 is for make and stops Ninja.",
        edits=(Edit("setup.py", "make_args.append('VERBOSE=1')", "pass"),),
    ),
    Patch(
        name="no-debug-info",
        why="Horovod builds with debug information: a wheel several times as large, and more time "
        "and memory to compile. Optimisation and assertions are the same without it.",
        edits=(Edit("setup.py", "else 'RelWithDebInfo'", "else 'Release'"),),
    ),
    Patch(
        name="rpath",
        why="CMake would write the absolute folders of this environment into the libraries. A path "
        "relative to the installed library lets one cached wheel serve every environment with the "
        "same versions.",
        edits=(
            Edit(
                "CMakeLists.txt",
                "project(horovod CXX)\n",
                "project(horovod CXX)\n"
                "set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)\n"
                'set(CMAKE_INSTALL_RPATH "$ENV{HOROVOD_BUILD_RPATH}")\n',
            ),
        ),
    ),
    Patch(
        name="host-only",
        why="Without NCCL the build must not depend on whether a CUDA toolkit happens to be "
        "installed: CMake would enable it, and PyTorch's CUDA build would pull in Horovod's CUDA "
        "kernels for every GPU architecture.",
        edits=(
            Edit(
                "CMakeLists.txt",
                "check_language(CUDA)\nif(NOT CMAKE_CUDA_COMPILER)\n    find_package(CUDAToolkit)",
                'set(CMAKE_CUDA_COMPILER "")\nif(FALSE)\n    find_package(CUDAToolkit)',
            ),
            Edit(
                "cmake/Modules/FindPytorch.cmake",
                'string(TOUPPER "${Pytorch_CUDA}" Pytorch_CUDA)',
                "set(Pytorch_CUDA FALSE)",
            ),
        ),
        nccl=False,
    ),
    Patch(
        name="no-xla-source",
        why="Everything in xla_mpi_ops.cc but its includes is for GPUs, and those includes are "
        "what TensorFlow has moved in every release since 2.16. Leaving the file out of a build "
        "for the host changes nothing and saves its slowest compilation.",
        edits=(
            Edit(
                "horovod/tensorflow/CMakeLists.txt",
                'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")',
                "",
            ),
        ),
        tensorflow=ANY,
        nccl=False,
    ),
    Patch(
        name="no-distutils-in-cmake",
        why="Python 3.12 has no distutils, and setuptools stands in for it only while it is "
        "installed.",
        edits=(
            Edit(
                "horovod/torch/CMakeLists.txt",
                "from distutils.sysconfig import get_python_inc; print(get_python_inc())",
                "import sysconfig; print(sysconfig.get_path('include'))",
            ),
        ),
        python=VersionRange("3.12"),
        torch=ANY,
    ),
    Patch(
        name="no-distutils-in-horovodrun",
        why="horovodrun imports distutils for one function that shutil has too.",
        edits=(
            Edit(
                "horovod/runner/js_run.py",
                "from distutils.spawn import find_executable",
                "from shutil import which as find_executable",
            ),
        ),
        python=VersionRange("3.12"),
    ),
    Patch(
        name="two-dashes-in-horovodrun",
        why="horovodrun writes mpirun's long options with one dash. Open MPI 5 takes that for "
        "short ones, and the program to run for what follows them.",
        edits=(
            Edit(
                "horovod/runner/mpi_run.py",
                "list(_OMPI_FLAGS), list(_NO_BINDING_ARGS)",
                "list(_OMPI_FLAGS), ['--bind-to none', '--map-by slot']",
            ),
        ),
        open_mpi=VersionRange("5"),
    ),
    Patch(
        name="large-prescaled-reducescatter",
        why="Horovod scales the input of a reducescatter in its fusion buffer, and refuses inputs "
        "larger than HOROVOD_FUSION_THRESHOLD. The buffer grows instead, and stays as large.",
        edits=(
            Edit(
                "horovod/common/controller.cc",
                """    if (requests[0].prescale_factor() != 1.0) {
      auto tensor_bytes = tensor_shape.num_elements() * GetTypeSize(data_type);
      if (tensor_bytes > TensorFusionThresholdBytes()) {
        error = true;
        error_message_stream << "Reducescatter with prescale_factor == "
                             << requests[0].prescale_factor()
                             << " != 1.0: The fusion buffer is not large "
                                "enough to hold the input tensor ("
                             << tensor_bytes
                             << " bytes); increase HOROVOD_FUSION_THRESHOLD.";
      }
    }
""",
                "",
            ),
            Edit(
                "horovod/common/operations.cc",
                """      Status status = horovod_global.fusion_buffer.InitializeBuffer(
          process_set.controller->TensorFusionThresholdBytes(),
          first_entry.device,""",
                """      int64_t buffer_bytes = process_set.controller\
->TensorFusionThresholdBytes();
      int64_t tensor_bytes = first_entry.tensor->size();
      if (entries.size() == 1 && tensor_bytes > buffer_bytes) {
        buffer_bytes = tensor_bytes;
      }
      Status status = horovod_global.fusion_buffer.InitializeBuffer(
          buffer_bytes, first_entry.device,""",
            ),
            Edit(
                "horovod/common/fusion_buffer_manager.cc",
                "if (size != threshold) {",
                "if (size < threshold) {",
            ),
        ),
    ),
    Patch(
        name="idle-cycles",
        why="All ranks exchange a message in every cycle, also when nothing is to be reduced: at "
        "0.1 ms this takes a third of a core from each program. With HOROVOD_IDLE_CYCLE_TIME "
        "(milliseconds) cycles without work double their length up to this time, and a new tensor "
        "starts the next cycle at once.",
        edits=(
            Edit(
                "horovod/common/tensor_queue.h",
                "#include <iostream>\n",
                "#include <chrono>\n#include <iostream>\n",
            ),
            Edit(
                "horovod/common/tensor_queue.h",
                "  void RemoveJoinTensor();\n",
                """  void RemoveJoinTensor();

  // Waits until a tensor has been added to any queue since the last call, at
  // most until the given moment.
  static void
  WaitForTensor(const std::chrono::steady_clock::time_point& latest);
""",
            ),
            Edit(
                "horovod/common/tensor_queue.cc",
                "#include <assert.h>\n",
                "#include <assert.h>\n#include <condition_variable>\n",
            ),
            Edit(
                "horovod/common/tensor_queue.cc",
                "// Add a TensorTableEntry as well as its message to the queue.\n",
                """namespace {

struct Bell {
  std::mutex mutex;
  std::condition_variable rung;
  bool rings = false;
};

// Never destroyed: the background thread may wait while the process exits.
Bell& TheBell() {
  static Bell* bell = new Bell();
  return *bell;
}

void Ring() {
  auto& bell = TheBell();
  {
    std::lock_guard<std::mutex> guard(bell.mutex);
    if (bell.rings) {
      return;
    }
    bell.rings = true;
  }
  bell.rung.notify_one();
}

} // namespace

void TensorQueue::WaitForTensor(
    const std::chrono::steady_clock::time_point& latest) {
  auto& bell = TheBell();
  std::unique_lock<std::mutex> lock(bell.mutex);
  bell.rung.wait_until(lock, latest, [&bell] { return bell.rings; });
  bell.rings = false;
}

// Add a TensorTableEntry as well as its message to the queue.
""",
            ),
            Edit(
                "horovod/common/tensor_queue.cc",
                """  message_queue_.push(std::move(message));
  return Status::OK();
""",
                """  message_queue_.push(std::move(message));
  Ring();
  return Status::OK();
""",
            ),
            Edit(
                "horovod/common/tensor_queue.cc",
                """    message_queue_.push(std::move(messages[i]));
  }
  return Status::OK();
""",
                """    message_queue_.push(std::move(messages[i]));
  }
  Ring();
  return Status::OK();
""",
            ),
            Edit(
                "horovod/common/global_state.h",
                "  std::chrono::steady_clock::time_point last_cycle_start;\n",
                """  std::chrono::steady_clock::time_point last_cycle_start;

  // Time from the end of a cycle to the next one if no tensor arrives, and its
  // limit. All ranks end a cycle at the same time, so that they also begin the
  // next one together and none of them polls for the others.
  std::chrono::steady_clock::time_point last_cycle_end;
  std::chrono::microseconds idle_cycle{0};
  std::chrono::microseconds longest_idle_cycle{0};
""",
            ),
            Edit(
                "horovod/common/operations.cc",
                "  // Override response cache capacity, if it's set.\n",
                """  auto idle_cycle_time = std::getenv("HOROVOD_IDLE_CYCLE_TIME");
  if (idle_cycle_time != nullptr) {
    state.longest_idle_cycle = std::chrono::microseconds(
        long(std::strtof(idle_cycle_time, nullptr) * 1000.));
  }

  // Override response cache capacity, if it's set.
""",
            ),
            Edit(
                "horovod/common/operations.cc",
                """    std::this_thread::sleep_for(sleep_duration);
  }
  state.last_cycle_start = std::chrono::steady_clock::now();
""",
                """    std::this_thread::sleep_for(sleep_duration);
  }
  if (state.longest_idle_cycle.count() > 0) {
    TensorQueue::WaitForTensor(state.last_cycle_end + state.idle_cycle);
  }
  state.last_cycle_start = std::chrono::steady_clock::now();
  bool idle = true;
""",
            ),
            Edit(
                "horovod/common/operations.cc",
                """    should_shutdown |= response_list.shutdown();
  }
""",
                """    should_shutdown |= response_list.shutdown();
    idle &= response_list.responses().empty();
  }
  auto shortest_cycle = std::chrono::microseconds(
      long(state.parameter_manager.CycleTimeMs() * 1000.));
  state.idle_cycle =
      idle ? std::min(2 * std::max(state.idle_cycle, shortest_cycle),
                      state.longest_idle_cycle)
           : shortest_cycle;
  state.last_cycle_end = std::chrono::steady_clock::now();
""",
            ),
        ),
    ),
    Patch(
        name="large-tensors-alone",
        why="Horovod copies tensors that are ready together into one buffer and back. Inside one "
        "machine this costs more than it saves, except for small tensors. "
        "HOROVOD_DISABLE_GROUP_FUSION=1 prevents it, but orders tensors by groups that a rank in "
        "join() does not know: ranks then reduce unequal tensors together. Tensors of more bytes "
        "than HOROVOD_LARGEST_FUSED are reduced alone; their sizes are known on all ranks.",
        edits=(
            Edit(
                "horovod/common/global_state.h",
                "  bool disable_group_fusion = false;\n",
                """  bool disable_group_fusion = false;

  // Larger tensors are never fused.
  int64_t largest_fused_bytes = INT64_MAX;
""",
            ),
            Edit(
                "horovod/common/operations.cc",
                "  // Check if group fusion should be disabled\n",
                """  auto largest_fused = std::getenv("HOROVOD_LARGEST_FUSED");
  if (largest_fused != nullptr) {
    state.largest_fused_bytes = std::strtoll(largest_fused, nullptr, 10);
  }

  // Check if group fusion should be disabled
""",
            ),
            Edit(
                "horovod/common/controller.cc",
                """      while (!responses.empty()) {
        auto& new_response = responses.front();
""",
                """      const bool fuses = tensor_size <= state.largest_fused_bytes;
      while (fuses && !responses.empty()) {
        auto& new_response = responses.front();
""",
            ),
            Edit(
                "horovod/common/controller.cc",
                "            tensor_size + new_tensor_size <= TensorFusionThresholdBytes() &&\n",
                """            tensor_size + new_tensor_size <= TensorFusionThresholdBytes() &&
            new_tensor_size <= state.largest_fused_bytes &&
""",
            ),
        ),
    ),
    Patch(
        name="free-without-lock",
        why="Where a rank ends, each other rank's thread frees the tensors that were not "
        "reduced, and holds the locks of its tables. PyTorch frees a tensor with the GIL, which "
        "the program's thread may hold while it waits for such a lock with its next tensor. The "
        "tensors are freed without a lock, and later ones are refused: nobody would reduce them.",
        edits=(
            Edit(
                "horovod/common/tensor_queue.h",
                "  void FinalizeTensorQueue(const Status& status);\n",
                """  // Refuses tensors from now on, and moves those that wait.
  void FinalizeTensorQueue(std::vector<TensorTableEntry>& abandoned);
  // Takes tensors again.
  void Open();
""",
            ),
            Edit(
                "horovod/common/tensor_queue.h",
                "  mutable std::mutex mutex_;\n",
                "  mutable std::mutex mutex_;\n\n  bool closed_ = false;\n",
            ),
            Edit(
                "horovod/common/tensor_queue.cc",
                "  if (tensor_table_.find(e.tensor_name) != tensor_table_.end()) {\n",
                """  if (closed_) {
    return SHUT_DOWN_ERROR;
  }
  if (tensor_table_.find(e.tensor_name) != tensor_table_.end()) {
""",
            ),
            Edit(
                "horovod/common/tensor_queue.cc",
                "  for (std::size_t i = 0; i < entries.size(); ++i) {\n",
                """  if (closed_) {
    return SHUT_DOWN_ERROR;
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
""",
            ),
            Edit(
                "horovod/common/tensor_queue.cc",
                """void TensorQueue::FinalizeTensorQueue(const Status& status) {
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto& e : tensor_table_) {
    e.second.FinishWithCallback(status);
  }
""",
                """void TensorQueue::Open() {
  std::lock_guard<std::mutex> guard(mutex_);
  closed_ = false;
}

void TensorQueue::FinalizeTensorQueue(
    std::vector<TensorTableEntry>& abandoned) {
  std::lock_guard<std::mutex> guard(mutex_);
  closed_ = true;
  for (auto& e : tensor_table_) {
    abandoned.push_back(std::move(e.second));
  }
""",
            ),
            Edit(
                "horovod/common/process_set.h",
                """  // Finalize tensor queue and communicators.
  void Finalize(const Status& status);
""",
                """  // Finalize tensor queue and communicators; moves the tensors that wait.
  void Finalize(std::vector<TensorTableEntry>& abandoned);
""",
            ),
            Edit(
                "horovod/common/process_set.h",
                "  int32_t id_to_be_removed_ = NO_PENDING_REMOVAL;\n",
                """  int32_t id_to_be_removed_ = NO_PENDING_REMOVAL;

  // Tensors of finalized process sets; of the background thread alone.
  std::vector<TensorTableEntry> abandoned_;

  // Ends and frees them; to be called without a lock.
  void Release(const Status& status);
""",
            ),
            Edit(
                "horovod/common/process_set.cc",
                '  LOG(TRACE) << "Initializing new process set with MPI: "\n',
                "  tensor_queue.Open();\n"
                '  LOG(TRACE) << "Initializing new process set with MPI: "\n',
            ),
            Edit(
                "horovod/common/process_set.cc",
                '  LOG(TRACE) << "Initializing new process set with Gloo: "\n',
                "  tensor_queue.Open();\n"
                '  LOG(TRACE) << "Initializing new process set with Gloo: "\n',
            ),
            Edit(
                "horovod/common/process_set.cc",
                """void ProcessSet::Finalize(const Status& status) {
  tensor_queue.FinalizeTensorQueue(status);
""",
                """void ProcessSetTable::Release(const Status& status) {
  for (auto& entry : abandoned_) {
    entry.FinishWithCallback(status);
  }
  abandoned_.clear();
}

void ProcessSet::Finalize(std::vector<TensorTableEntry>& abandoned) {
  tensor_queue.FinalizeTensorQueue(abandoned);
""",
            ),
            Edit(
                "horovod/common/process_set.cc",
                "      id_to_process_set_[id_to_be_removed_].Finalize(removal_status);\n",
                "      id_to_process_set_[id_to_be_removed_].Finalize(abandoned_);\n",
            ),
            Edit(
                "horovod/common/process_set.cc",
                "  id_to_process_set_[0].Finalize(status);\n",
                "  id_to_process_set_[0].Finalize(abandoned_);\n",
            ),
            Edit(
                "horovod/common/process_set.cc",
                """  return InitializeRegisteredAndRemoveMarkedIfReady_(global_mpi_context,
                                                     removal_status);
""",
                """  auto count = InitializeRegisteredAndRemoveMarkedIfReady_(global_mpi_context,
                                                           removal_status);
  Release(removal_status);
  return count;
""",
            ),
            Edit(
                "horovod/common/process_set.cc",
                "  Finalize_(global_mpi_context, status);\n",
                "  Finalize_(global_mpi_context, status);\n  Release(status);\n",
            ),
            Edit(
                "horovod/common/process_set.cc",
                """  return InitializeRegisteredAndRemoveMarkedIfReady_(global_gloo_context,
                                                     status);
""",
                """  auto count = InitializeRegisteredAndRemoveMarkedIfReady_(
      global_gloo_context, status);
  Release(status);
  return count;
""",
            ),
            Edit(
                "horovod/common/process_set.cc",
                "  Finalize_(global_gloo_context, status);\n",
                "  Finalize_(global_gloo_context, status);\n  Release(status);\n",
            ),
        ),
    ),
    Patch(
        name="all-stalled-tensors",
        why="Ranks that wait for different tensors begin to wait at slightly different moments. "
        "Horovod's message of a stall leaves out tensors that do not wait for as long yet, and so "
        "names only some of the ranks. It lists tensors that wait for half as long, too.",
        edits=(
            Edit(
                "horovod/common/stall_inspector.cc",
                """  for (auto& m : uncached_tensor_table) {
""",
                """  bool is_any_stalled = false;
  for (auto& m : uncached_tensor_table) {
    if (now - std::get<1>(m.second) > stall_warning_time) {
      is_any_stalled = true;
    }
  }
  auto listed_time = std::chrono::milliseconds(stall_warning_time) / 2;

  for (auto& m : uncached_tensor_table) {
""",
            ),
            Edit(
                "horovod/common/stall_inspector.cc",
                "    if (lag > stall_warning_time) {\n      std::unordered_set",
                "    if (is_any_stalled && lag > listed_time) {\n      std::unordered_set",
            ),
        ),
    ),
    Patch(
        name="waits-that-sleep",
        why="Threads that wait call sched_yield in a loop: PyTorch's synchronize, the broadcast "
        "of TensorFlow's variables, the timeline, and Open MPI in Horovod's own thread. They keep "
        "cores from other programs, and Linux 6.18 then lets nothing else run for minutes. "
        "synchronize also sees signals, such as Ctrl-C, while it waits.",
        edits=(
            Edit(
                "horovod/torch/handle_manager.h",
                "#include <memory>\n",
                "#include <chrono>\n#include <condition_variable>\n#include <memory>\n",
            ),
            Edit(
                "horovod/torch/handle_manager.h",
                "  bool PollHandle(int handle);\n",
                """  bool PollHandle(int handle);
  // Waits until a handle is done or a time has passed.
  void WaitHandle(int handle, std::chrono::milliseconds longest);
""",
            ),
            Edit(
                "horovod/torch/handle_manager.h",
                "  std::mutex mutex_;\n",
                "  std::mutex mutex_;\n  std::condition_variable done_;\n",
            ),
            Edit(
                "horovod/torch/handle_manager.cc",
                """  results_[handle] = std::make_shared<Status>(status);
}
""",
                """  results_[handle] = std::make_shared<Status>(status);
  done_.notify_all();
}

void HandleManager::WaitHandle(int handle, std::chrono::milliseconds longest) {
  std::unique_lock<std::mutex> guard(mutex_);
  done_.wait_for(guard, longest, [&] {
    auto result = results_.find(handle);
    return result == results_.end() || result->second != nullptr;
  });
}
""",
            ),
            Edit(
                "horovod/torch/mpi_ops_v2.cc",
                """  while (true) {
    if (handle_manager.PollHandle(handle)) break;
    {
      py::gil_scoped_release release_python_gil;
      std::this_thread::yield();
    }
  }
""",
                """  // What ends at once is not worth going to sleep.
  auto sleeps_at =
      std::chrono::steady_clock::now() + std::chrono::microseconds(50);
  while (!handle_manager.PollHandle(handle)) {
    {
      py::gil_scoped_release release_python_gil;
      if (std::chrono::steady_clock::now() < sleeps_at) {
        std::this_thread::yield();
      } else {
        handle_manager.WaitHandle(handle, std::chrono::milliseconds(100));
      }
    }
    if (PyErr_CheckSignals() != 0) {
      throw py::error_already_set();
    }
  }
""",
            ),
            Edit(
                "horovod/tensorflow/mpi_ops.cc",
                "      std::this_thread::yield();\n",
                "      std::this_thread::sleep_for(std::chrono::microseconds(50));\n",
            ),
            Edit(
                "horovod/common/timeline.cc",
                "    std::this_thread::yield();\n",
                "    std::this_thread::sleep_for(std::chrono::milliseconds(1));\n",
            ),
            Edit(
                "horovod/common/mpi/mpi_context.h",
                "struct MPIContext {\n",
                """// Whether this thread exchanges tensors, and does not only wait for other ranks.
extern thread_local bool mpi_exchanges_tensors;

struct MPIContext {
""",
            ),
            Edit(
                "horovod/common/mpi/mpi_context.cc",
                "#include <cassert>\n#include <iostream>\n",
                "#include <algorithm>\n#include <cassert>\n#include <chrono>\n"
                "#include <iostream>\n",
            ),
            Edit(
                "horovod/common/mpi/mpi_context.cc",
                "#include <memory>\n#include <vector>\n",
                "#include <memory>\n#include <thread>\n#include <vector>\n",
            ),
            Edit(
                "horovod/common/mpi/mpi_context.cc",
                "void MPIContext::Initialize(MPIContextManager& ctx_manager) {\n",
                """thread_local bool mpi_exchanges_tensors = false;

// Open MPI's; null with another MPI.
extern "C" int opal_progress_register(int (*callback)(void))
    __attribute__((weak));

namespace {

// Open MPI calls this whenever it looks for messages. Calls that follow one
// another at once are one wait: it sleeps for a twentieth of the time waited
// so far. While tensors are on their way, that would keep them.
int SleepInLongWaits() {
  using namespace std::chrono;
  thread_local steady_clock::time_point began, last, sleeps_at;
  auto now = steady_clock::now();
  if (now - last > microseconds(100)) {
    began = now;
    sleeps_at = now + (mpi_exchanges_tensors ? microseconds(20000)
                                             : microseconds(100));
  }
  if (now >= sleeps_at) {
    auto pause = mpi_exchanges_tensors
                     ? nanoseconds(1)
                     : std::min<nanoseconds>((now - began) / 20,
                                             microseconds(500));
    std::this_thread::sleep_for(pause);
    now = steady_clock::now();
    sleeps_at = mpi_exchanges_tensors ? now + milliseconds(2) : now;
  }
  last = now;
  return 0;
}

} // namespace

void MPIContext::Initialize(MPIContextManager& ctx_manager) {
""",
            ),
            Edit(
                "horovod/common/mpi/mpi_context.cc",
                "    should_finalize = true;\n",
                """    should_finalize = true;
    if (opal_progress_register != nullptr) {
      opal_progress_register(SleepInLongWaits);
    }
""",
            ),
            Edit(
                "horovod/common/operations.cc",
                "    status = op_manager->ExecuteOperation(entries, response, process_set);\n",
                """#if HAVE_MPI
    mpi_exchanges_tensors = true;
#endif
    status = op_manager->ExecuteOperation(entries, response, process_set);
""",
            ),
            Edit(
                "horovod/common/operations.cc",
                """    status = Status::UnknownError(ex.what());
  }

  if (!status.in_progress()) {
""",
                """    status = Status::UnknownError(ex.what());
  }
#if HAVE_MPI
  mpi_exchanges_tensors = false;
#endif

  if (!status.in_progress()) {
""",
            ),
        ),
    ),
    Patch(
        name="cuda-cxx17",
        why="The headers of current CUDA toolkits need C++17 in device code; Horovod asks for "
        "C++11.",
        edits=(
            Edit(
                "horovod/common/ops/cuda/CMakeLists.txt",
                "set(CMAKE_CUDA_STANDARD 11)",
                "set(CMAKE_CUDA_STANDARD 17)",
            ),
        ),
        nccl=True,
    ),
)
"""All patches, in the order in which they are applied."""


def select(target: Target, patches: tuple[Patch, ...] = PATCHES) -> tuple[Patch, ...]:
    """The patches that a build takes."""
    return tuple(patch for patch in patches if patch.applies(target))


def digest(patches: tuple[Patch, ...]) -> str:
    """A fingerprint (16 hexadecimal digits) of the edits; reasons and names are not part of it."""
    edits = [asdict(edit) for patch in patches for edit in patch.edits]
    return hashlib.sha256(json.dumps(edits, sort_keys=True).encode()).hexdigest()[:16]
