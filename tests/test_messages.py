# SPDX-License-Identifier: Apache-2.0
"""Messages of the library: all are found in the source, met by a test, and say something.

tests/met_messages.py notes the places in the source whose errors the tests meet, not their words,
and a whole run fails if a place is left. The calls are in the tables of refusals.
"""

import re
from types import SimpleNamespace

import pytest
from tests.met_messages import Recorder, messages

import pufferslice as ps
from pufferslice._core.arrays import locked
from pufferslice.errors import PuffersliceError


class TestFound:
    def test_messages_in_all_spellings(self, tmp_path, monkeypatch):
        path = tmp_path / "pufferslice" / "some.py"
        path.parent.mkdir()
        path.write_text(
            """
def f(x):
    if x:
        msg = (
            f"x must be 0, got {x!r}. "
            "Take 0"
        )
        raise ArgumentError(msg)
    try:
        return 1
    except OSError as error:
        raise StorageError(error.errno, "cannot read" + f" {x}") from error

def built(why):
    return errors.LedgerError(
        why
    )

def other():
    raise KeyError("not ours")
""",
            encoding="utf-8",
        )
        names = messages.error_names()
        monkeypatch.setattr(messages, "PACKAGE", path.parent)
        monkeypatch.setattr(messages, "error_names", lambda: names)
        found = messages.sites_of(path)
        assert [(site.kind, site.text) for site in found] == [
            ("ArgumentError", "x must be 0, got {x}. Take 0"),
            ("StorageError", "cannot read {x}"),
            ("LedgerError", "{why}"),
        ]
        assert found[2].last_line == found[2].first_line + 2
        assert str(found[0]).startswith("pufferslice.some:8 ArgumentError: x must")

    def test_every_error_of_the_package_is_a_site(self):
        """Counted another way: by the text of the source."""
        kinds = "|".join(messages.error_names())
        pattern = re.compile(rf"\b(?:raise|return) (?:\w+\.)?({kinds})\(")
        counted = {
            messages.name_of(path): len(pattern.findall(path.read_text(encoding="utf-8")))
            for path in messages.modules()
        }
        found = dict.fromkeys(counted, 0)
        for site in messages.all_sites():
            found[site.module] += 1
        assert not {name: n for name, n in counted.items() if n > found[name]}

    def test_quotes_inside_a_message_do_not_end_it(self):
        assert messages.quoted("plain") == "`plain`"
        assert messages.quoted("use `x`") == "`` use `x` ``"

    def test_other_pages_stay_as_they_are(self):
        assert messages.on_page_markdown("a page") == "a page"
        assert "ArgumentError" in messages.on_page_markdown(f"x {messages.PLACEHOLDER}")


class TestEach:
    """Checks that need no reader."""

    def test_every_message_says_something(self):
        assert not [str(site) for site in messages.all_sites() if not site.text]

    def test_no_message_shouts_or_ends_in_a_full_stop(self):
        wrong = [
            str(site)
            for site in messages.all_sites()
            if "!" in re.sub(r"\{[^}]*\}", "", site.text) or site.text.endswith(".")
        ]
        assert not wrong

    def test_only_training_warns(self):
        """An unsound request raises; a wasteful one is told in the certificate, or while training.

        Training says once that it is slow, that it takes examples by themselves, and that noise
        drowns what Adam adapts to.
        """
        places = [site.module for site in messages.all_sites() if site.kind == "warning"]
        assert places == ["pufferslice.torch.clipping"] * 2 + ["pufferslice.torch.trainer"]


class TestRecorder:
    def test_a_site_is_met_when_its_error_is_built(self):
        recorder = Recorder()
        before = PuffersliceError.__dict__["__init__"]
        recorder.start()
        try:
            with pytest.raises(ps.errors.ArgumentError):
                locked("words")
            with pytest.raises(ps.errors.StorageError) as caught:
                ps.Certificate.load("/nowhere/at/all.json")
        finally:
            PuffersliceError.__init__ = before
        assert caught.value.errno == 2
        assert {module for module, _ in recorder.met} >= {"pufferslice._core.arrays"}
        unmet = {site.module for site in recorder.unmet()}
        assert "pufferslice.releases.ledger" in unmet
        assert len(recorder.unmet()) < len(messages.all_sites())

    def test_workers_hand_over_what_they_met(self):
        said = {"pufferslice_messages_met": [["pufferslice._core.arrays", 1]]}
        recorder = Recorder()
        recorder.pytest_testnodedown(SimpleNamespace(workeroutput=said), None)
        recorder.pytest_testnodedown(object(), "crashed before it could say")
        assert recorder.met == {("pufferslice._core.arrays", 1)}
