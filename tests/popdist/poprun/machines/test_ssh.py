"""How other hosts are called, and what is made of their silence."""

import pytest

from popdist.errors import UsageError
from popdist.poprun.machines.find_mpirun import OPEN_MPI_4, OPEN_MPI_5
from popdist.poprun.machines.hosts import Host
from popdist.poprun.machines.preflight import is_here
from popdist.poprun.machines.reasons import explain_answer, explain_ssh, unfit_hosts
from popdist.poprun.machines.ssh import QUIET, STRICT, is_ssh_set, ssh_words
from popdist.poprun.options.requests import Reach
from popdist.poprun.plan.mpirun import network_variables
from tests.popdist.poprun.plan.test_placement import job as make_job


@pytest.mark.parametrize(
    ("words", "environ", "expected"),
    [
        ([], {}, ["ssh", *QUIET, *STRICT]),
        (["--tag-output", "--mca", "plm_rsh_args", "-i k -p 22"], {},
         ["ssh", *QUIET, "-i", "k", "-p", "22", *STRICT]),
        (["--prtemca", "plm_ssh_args", "-p 22"], {}, ["ssh", *QUIET, "-p", "22", *STRICT]),
        ([], {"OMPI_MCA_plm_rsh_args": "-v"}, ["ssh", *QUIET, "-v", *STRICT]),
        ([], {"PRTE_MCA_plm_ssh_args": "-v"}, ["ssh", *QUIET, "-v", *STRICT]),
        (["--mca", "plm_rsh_agent", "/opt/bin/ssh -x : rsh"], {},
         ["/opt/bin/ssh", *QUIET, "-x", *STRICT]),
        (["--mca", "plm_rsh_agent", "kubexec.sh"], {}, ["kubexec.sh"]),
    ],
)  # fmt: skip
def test_hosts_are_called_as_mpirun_calls_them(words, environ, expected):
    assert ssh_words(words, environ) == expected


def test_quotes_that_do_not_match_are_explained():
    with pytest.raises(UsageError, match="quotes"):
        ssh_words(["--mca", "plm_rsh_args", "-o 'x"], {})


def test_only_settings_of_ssh_count():
    assert not is_ssh_set(["--mca", "btl_tcp_if_include", "plm_rsh_args"], {})
    assert is_ssh_set(["-mca", "plm_rsh_args", "-v"], {})


@pytest.mark.parametrize(
    ("code", "errors", "kind"),
    [
        (255, "No RSA host key is known\nHost key verification failed.\n", "unknown key"),
        (255, "u@h: Permission denied (publickey,password).", "denied"),
        (255, "ssh: Could not resolve hostname h: Name or service not known", "unknown name"),
        (255, "ssh: connect to host h port 22: Connection refused", "refused"),
        (255, "ssh: connect to host h port 22: No route to host", "unreachable"),
        (255, "ssh: connect to host h port 22: Connection timed out", "unreachable"),
        (255, "kex_exchange_identification: Connection closed by remote host", "unreachable"),
        (255, "something new", "ssh"),
        (255, "ssh: No such file or directory", "ssh"),
        (255, "", "ssh"),
        (None, "", "timeout"),
        (127, "sh: 1: exec: /x/python: not found", "no python"),
        (126, "sh: /x/python: Permission denied", "no python"),
        (1, "ModuleNotFoundError: No module named 'popdist'", "no popdist"),
        (1, "Traceback", "failed"),
    ],
)
def test_causes_by_what_ssh_says(code, errors, kind):
    assert explain_ssh(code, errors, "/x/python").kind == kind


@pytest.mark.parametrize(
    ("answer", "skew", "kind"),
    [
        ({}, 0.0, None),
        ({}, 4.9, None),
        ({}, 61.0, "clock"),
        ({}, -61.0, "clock"),
        ({"version": "0.1"}, 99.0, "version"),
        ({"mpirun": False}, 0.0, "no mpirun"),
    ],
)
def test_causes_by_what_a_host_says(answer, skew, kind):
    reason = explain_answer({"version": "1.0", "mpirun": True, **answer}, "1.0", "/m", skew)
    assert (reason and reason.kind) == kind


def test_a_long_list_of_hosts_is_cut_and_a_remedy_stands_once():
    reason = explain_ssh(255, "Permission denied", "/p")
    text = str(unfit_hosts({f"h{index}": reason for index in range(100)}, 200))
    assert "100 of 200 hosts" in text
    assert "... and 80 more" in text
    assert text.count("ssh-copy-id") == 1


def test_addresses_of_this_machine_are_known():
    assert is_here("127.0.0.1")
    assert not is_here("192.0.2.1")
    assert not is_here("no.such.host.invalid")


@pytest.mark.parametrize("dialect", [OPEN_MPI_4, OPEN_MPI_5], ids=["4", "5"])
def test_mpirun_asks_nothing_either_and_uses_the_wanted_network(dialect):
    job = make_job(2, 2, (Host("a"), Host("b")), reach=Reach(host_subnet="10.1.0.0/16"))
    found = network_variables(job, dialect, {})
    assert found[dialect.ssh_variable] == " ".join([*QUIET, *STRICT])
    assert found[dialect.control_network] == "10.1.0.0/16"
    assert found["OMPI_MCA_btl_tcp_if_include"] == "10.1.0.0/16"
    own = make_job(2, 2, (Host("a"),), global_args=("--mca", "plm_rsh_args", "-v"))
    assert network_variables(own, dialect, {}) == {}
    assert network_variables(make_job(2, 2), dialect, {}) == dialect.here_alone


@pytest.mark.parametrize("text", ["10.1.0.0/16", "eth0", "10.1.0.0/16,ib0.8001", "enp3s0f0,lo"])
def test_networks_are_subnets_or_interfaces(text):
    job = make_job(2, 2, (Host("a"),), reach=Reach(host_subnet=text))
    assert text in network_variables(job, OPEN_MPI_4, {}).values()


@pytest.mark.parametrize(
    "text", ["", ",", "10.1.0.0", "10.1.0/16", "10.1.0.0/33", "300.1.0.0/8", "a b", "-x", "e" * 16]
)
def test_other_networks_are_refused(text):
    job = make_job(2, 2, (Host("a"),), reach=Reach(host_subnet=text))
    with pytest.raises(UsageError, match="not a list of networks"):
        network_variables(job, OPEN_MPI_4, {})
