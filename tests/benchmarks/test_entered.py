"""The counts of files that a command or a step goes through."""

from benchmarks.entered import STEPS, main, of_dry_run, of_guard, of_step


def test_a_dry_run_loads_less_than_a_job_and_a_guard_knows_no_launcher():
    assert "popdist.poprun.cli" in of_dry_run()
    assert not [name for name in of_dry_run() if ".poprun.supervisor.supervisor" in name]
    guard = of_guard()
    assert "popdist.poprun.guard.guard" in guard
    rooms = {name.split(".")[2] for name in guard if name.startswith("popdist.poprun.")}
    assert rooms <= {"guard", "protocol", "machines", "record"}


def test_a_step_goes_through_the_files_whose_code_runs():
    seen = of_step("import popdist\nbegin(); popdist.getNumInstances(); end()")
    # Every import asks the finder of the environment's Open MPI, where there is one.
    assert [name for name in seen if "openmpi_prefix" not in name] == [
        "popdist/__init__.py",
        "popdist/contract.py",
        "popdist/errors.py",
        "popdist/popdist_core.py",
    ]
    assert of_step("begin(); end()") == []


def test_the_step_of_a_job_goes_through_its_exchange():
    program, processes = STEPS["trainingModel(...)(x), its third call, 2 processes"]
    seen = of_step(program, processes)
    assert "popdist/exchange/allreduce.py" in seen
    assert "popdist/exchange/allreduce.py" not in of_step(program)
    # Nor through parts that are off.
    off = ("anchors", "float_exceptions", "in_place", "loss_scaling", "recomputation", "turns")
    assert not [name for name in seen if name.endswith(tuple(f"/{part}.py" for part in off))]
    assert not [name for name in seen if name.startswith("popdist_torch/options/")]


def test_counts_are_printed_with_their_names(capsys):
    main(["--launcher", "--list"])
    printed = capsys.readouterr().out.splitlines()
    assert [line.strip().split(" ", 1)[1] for line in printed if line[3].isdigit()] == [
        "poprun --dry-run",
        "poprun",
        "a guard",
    ]
