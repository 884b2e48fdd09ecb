"""The surface of the launcher, frozen: what scripts of users rely on."""

import pytest

from popdist.poprun.options import types
from popdist.poprun.options.table import BY_ALIAS, BY_NAME, OPTIONS

# Adding, renaming or removing an option, or changing a default, is a decision about users'
# scripts: change this list with it. A line is: spellings ; values ; default ; rules.
SURFACE = """
--help -h ; flag ; 0 ; typed
--version ; flag ; 0 ; typed
--version-format ; text|full-text|full-json ; text ; typed
--verbose -v ; flag ; 0
--vv -vv ; flag ; 0
--dry-run ; boolean ; False
--allow-run-as-root ; boolean ; True
--completion ; bash|zsh ; None ; typed
--config --import-config ; file ; None
--export-config ; file ; None ; typed
--overwrite-config ; boolean ; False ; typed
--emit ; mpijob ; None ; typed
--emit-image ; text ; None
--emit-name ; name ; None
--num-instances -np -n ; instances ; None
--num-replicas ; count ; None
--ipus-per-replica ; count ; 1
--num-ilds ; count ; 1
--offline-mode ; boolean ; False
--ipu-version ; count ; None
--executable-cache-path ; directory ; None
--sdk-names ; flag ; None
--ddp ; torch|popdist ; torch
--host -H ; hosts ; None ; not-with:hostfile
--hostfile ; file ; None ; not-with:host
--nnodes ; count ; 1
--node-rank ; index ; None
--master-addr ; text ; None
--master-port ; port ; 29400
--host-subnet ; text ; None
--preflight ; boolean ; True
--distribute-ssh-key ; boolean ; False
--synchronise-python-venv ; boolean ; False
--synchronise-poplar-sdk ; boolean ; False
--numa-aware ; boolean ; None
--process-placement ; spreadnuma|disabled ; None
--mpirun ; file ; None
--mpi-tcp ; boolean ; None
--mpi-global-args ; text ; None ; repeatable
--mpi-local-args ; text ; None ; repeatable
--instance-mpi-local-args ; text ; None ; repeatable
--env -x ; text ; None ; repeatable
--tf-config ; boolean ; False
--vipu-server-host ; text ; localhost
--vipu-server-port ; port ; 8090
--vipu-server-timeout ; seconds ; 10.0
--vipu-partition ; name ; None
--vipu-partition-attempts ; count ; 1
--vipu-allocation ; name ; None ; not-with:vipu-cluster
--vipu-cluster ; name ; None ; not-with:vipu-allocation
--update-partition ; boolean ; False
--reset-partition ; boolean ; None
--remove-partition ; boolean ; True
--ipu-link-routing-type ; name ; None
--gw-link-routing-type ; name ; None
--sync-type ; name ; None
--timeout ; seconds ; None
--stall-warning ; seconds ; 60.0
--stall-timeout ; seconds ; None
--max-restarts ; index ; 0
--min-instances ; instances ; None
--grace-period ; seconds ; 5.0
--forward-signals ; text ; USR1,USR2
--host-timeout ; seconds ; 30.0
--allow-daemons ; boolean ; False
--control-groups ; boolean ; None
--check-weights ; boolean ; True
--compare-alone ; count ; None ; typed
--print-topology ; boolean ; False
--only-output-from-instance ; index ; None
--repeated-output ; first|all ; first
--tag-output ; boolean ; False
--output-filename ; directory ; None
--log-dir ; directory ; None
--json ; file ; None
--timeline ; file ; None
--status ; auto|always|never ; auto
--color ; auto|always|never ; auto
"""

KINDS = {id(kind): name.lower() for name, kind in vars(types).items() if name.isupper()}


def line(option):
    rules = [
        "repeatable" if option.repeatable else "",
        "typed" if option.typed_only else "",
        f"not-with:{option.excludes}" if option.excludes else "",
    ]
    parts = [
        " ".join([f"--{option.name}", *option.aliases]),
        KINDS.get(id(option.kind)) or "|".join(option.kind.choices),
        str(option.default),
        " ".join(filter(None, rules)),
    ]
    return " ; ".join(filter(None, parts))


def test_the_surface_is_frozen():
    assert [line(option) for option in OPTIONS] == SURFACE.strip().splitlines()


def test_names_are_unique():
    assert len(BY_NAME) == len(OPTIONS)
    assert len(BY_ALIAS) == sum(len(option.aliases) for option in OPTIONS)
    assert not {f"--{name}" for name in BY_NAME} & set(BY_ALIAS)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_a_declaration_is_complete(option):
    assert option.help[0].isupper()
    assert not option.help.endswith(".")
    assert option.since in {"1.4", "2.0", "2.1", "2.2", "3.0", "popdist"}
    assert not option.excludes or BY_NAME[option.excludes].excludes == option.name
    if option.default is not None and option.kind is not types.FLAG:
        shown = option.shown_default or str(option.default)
        text = {"True": "yes", "False": "no"}.get(shown, shown)
        assert option.kind.convert(text) == option.default
