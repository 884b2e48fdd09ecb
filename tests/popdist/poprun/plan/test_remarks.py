"""What is said about a job, and who may start one."""

import pytest

from popdist.errors import LaunchError
from popdist.poprun.plan.job import check_user, remarks
from tests.popdist.poprun.plan.test_placement import job


def test_root_may_run_jobs_unless_it_was_told_not_to():
    check_user(job(1, 1), 0)
    check_user(job(1, 1, allow_run_as_root=False), 1000)
    with pytest.raises(LaunchError, match="may not run as root") as caught:
        check_user(job(1, 1, allow_run_as_root=False), 0)
    assert caught.value.code == "PD107"


def test_root_is_told_and_so_is_who_sets_what_has_no_effect():
    assert remarks(job(1, 1), 1000) == []
    assert remarks(job(1, 1), 0) == ["running as root, and so are the instances"]
    [remark] = remarks(job(1, 1, given=frozenset({"sync-type", "num-ilds"})), 1000)
    assert remark.startswith("--sync-type is noted")
