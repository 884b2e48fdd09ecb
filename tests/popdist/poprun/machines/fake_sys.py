"""Trees that look like ``/sys`` and ``/proc`` of other machines."""

from popdist.poprun.protocol.guard_argv import format_list


def make_tree(folder, nodes, *, online=None, siblings=(), memory=None, online_nodes=None, files=()):
    """Writes a tree.

    Args:
        folder: An existing, empty folder.
        nodes: The processors of each node.
        online: The processors that are online; all by default.
        siblings: Groups of hyper-threads of one core; none by default.
        memory: The nodes that have memory; all by default.
        online_nodes: The nodes that are online; all by default.
        files: More files, as pairs of path and text.

    Returns:
        The root of the tree.
    """
    everything = sorted(cpu for node in nodes for cpu in node)
    texts = {
        "sys/devices/system/cpu/online": format_list(everything if online is None else online),
        "sys/devices/system/cpu/smt/active": "1" if siblings else "0",
        "sys/devices/system/node/online": format_list(
            range(len(nodes)) if online_nodes is None else online_nodes
        ),
        "sys/devices/system/node/has_memory": format_list(
            range(len(nodes)) if memory is None else memory
        ),
        **{
            f"sys/devices/system/node/node{index}/cpulist": format_list(cpus)
            for index, cpus in enumerate(nodes)
        },
        **{
            f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": format_list(core)
            for core in siblings
            for cpu in core
        },
        **dict(files),
    }
    for path, text in texts.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return str(folder)
