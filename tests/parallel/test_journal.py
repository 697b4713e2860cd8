"""A journal loses nothing that is whole, and takes nothing that is not."""

import json

import pytest

from mslsq.parallel import JournalError
from mslsq.parallel.journal import Journal

RUN = {"model": "se2", "items": 3}


@pytest.fixture
def path(tmp_path):
    """A journal of two records."""
    path = tmp_path / "folder" / "journal.jsonl"
    with Journal(path, RUN) as journal:
        journal.append({"item": 0, "result": 0.1})
        journal.append({"item": 1, "result": "ä"})
    return path


def items(path):
    with Journal(path, RUN) as journal:
        return [record["item"] for record in journal.records], journal.dropped


def test_every_line_is_json_with_the_result_to_the_bit(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["run"] == RUN
    assert [line.get("result") for line in lines[1:]] == [0.1, "ä"]


def test_wherever_the_file_is_cut_off_whole_records_stay_and_the_next_one_can_be_read(path):
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    for length in range(len(lines[0]), len(content) + 1):
        path.write_bytes(content[:length])
        with Journal(path, RUN) as journal:
            whole = [record["item"] for record in journal.records]
            assert journal.dropped == (not content[:length].endswith(b"\n"))
            journal.append({"item": 2, "result": 7})
        assert whole == list(range(len(whole)))
        assert items(path) == ([*whole, 2], 0)


def test_a_header_that_was_cut_off_is_written_again(path):
    path.write_bytes(path.read_bytes()[:20])
    assert items(path) == ([], 1)
    assert items(path) == ([], 0)


def test_a_changed_byte_drops_its_line_alone(path):
    path.write_bytes(path.read_bytes().replace(b'"result":0.1', b'"result":0.2'))
    assert items(path) == ([1], 1)


def test_another_run_is_refused_with_what_differs(path):
    with pytest.raises(JournalError, match='model = "se2", not "sim2"'):
        Journal(path, RUN | {"model": "sim2"})
    assert items(path) == ([0, 1], 0)
    Journal(path, RUN | {"model": "sim2"}, resume=False).close()
    with pytest.raises(JournalError, match="start again"):
        Journal(path, RUN)


def test_a_damaged_or_foreign_first_line_is_refused(path, tmp_path):
    path.write_bytes(b"x" + path.read_bytes())
    with pytest.raises(JournalError, match="first line"):
        Journal(path, RUN)


def test_two_runs_do_not_write_to_one_journal(path):
    pytest.importorskip("fcntl")
    with Journal(path, RUN), pytest.raises(JournalError, match="another run is writing"):
        Journal(path, RUN)
    assert items(path) == ([0, 1], 0)


def test_a_folder_in_the_place_of_a_journal_is_an_error_of_writing(tmp_path):
    with pytest.raises(OSError, match="cannot be written"):
        Journal(tmp_path, RUN)


@pytest.mark.parametrize("resume", [True, False])
def test_a_file_of_something_else_is_refused_and_kept(tmp_path, resume):
    path = tmp_path / "data.csv"
    path.write_text("x,y\n1,2\n")
    with pytest.raises(JournalError, match="no journal that mslsq has written"):
        Journal(path, RUN, resume=resume)
    assert path.read_text() == "x,y\n1,2\n"


def test_a_journal_whose_first_line_was_cut_off_begins_again(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(b'{"crc":"12')
    journal = Journal(path, RUN)
    journal.close()
    assert journal.records == [] and Journal(path, RUN).records == []


def test_of_long_records_the_entry_is_named_that_differs(tmp_path):
    """What is printed of both is cut off before the difference."""
    long = {"data": {"path": "x" * 200, "shape": [3, 4], "changed": 1}, "items": 3}
    with Journal(tmp_path / "j", long):
        pass
    other = {**long, "data": {**long["data"], "changed": 2}}
    with pytest.raises(JournalError, match=r"has data\.changed = 1, not 2"), Journal(tmp_path / "j", other):
        pass
