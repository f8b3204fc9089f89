"""The table of error numbers: complete, consistent, and changed by a site's own file."""

import os
from pathlib import Path

import pytest

from nodewarden.config import load_config
from nodewarden.errors import ConfigError
from nodewarden.xid_table import TableError, XidTable, load_table

DOCS = Path(__file__).parents[2] / "docs"


def own(tmp_path: Path, text: str) -> XidTable:
    path = tmp_path / "xids.toml"
    path.write_text(text)
    return load_table(path)


def mistakes(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(TableError) as error:
        own(tmp_path, text)
    return error.value.mistakes


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68])
def test_errors_of_applications_never_condemn_a_gpu(code: int) -> None:
    """F15."""
    row = load_table().row(code)
    assert row.severity == "application"
    assert row.over_after_s is not None


@pytest.mark.parametrize("code", [46, 48, 62, 64, 74, 79, 95, 119, 120, 140, 143])
def test_errors_of_the_hardware_hold_until_a_reset(code: int) -> None:
    """F15: no number that needs a reset is ignored."""
    row = load_table().row(code)
    assert (row.severity, row.over_after_s) == ("critical", None)


def test_an_unknown_number_is_a_warning_that_ends() -> None:
    """F15."""
    row = load_table().row(4711)
    assert row.severity == "warning"
    assert row.over_after_s == 3600.0


def test_every_row_says_what_to_do() -> None:
    table = load_table()
    assert len(table.codes) > 40
    assert all(table.row(code).advice and table.row(code).meaning.endswith(".") for code in table.codes)


def test_a_file_of_the_site_replaces_single_keys_and_adds_rows(tmp_path: Path) -> None:
    table = own(
        tmp_path,
        """
        [xid.109]
        severity = "critical"
        [xid.31]
        quiet_s = 60
        [xid.999]
        name = "new"
        """,
    )
    assert (table.row(109).severity, table.row(109).over_after_s) == ("critical", None)
    assert table.row(109).name == "context switch time-out"
    assert table.row(31).over_after_s == 60
    assert (table.row(999).name, table.row(999).severity) == ("new", "warning")
    assert table.row(79) == load_table().row(79)
    assert "xids.toml" in table.version


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[xid.x]\nname = 'a'", 'found "x", allowed: a number'),
        ("[xid.79]\nseverity = 'bad'", 'severity: found the text "bad", allowed: one of'),
        ("[xid.79]\nquite_s = 5", "xid.79.quite_s"),
        ("[xid.79]\nquiet_s = -1", "xid.79.quiet_s: found -1"),
        ("xid = 3", "xid: found no table"),
        ("[xid]\n79 = 3", "xid.79: found no table"),
        ("unknown = 3", "unknown"),
        ("xids = 3", "xids"),
        ("[xid.79", "not valid TOML"),
    ],
)
def test_a_mistake_is_named_with_what_is_allowed(tmp_path: Path, text: str, said: str) -> None:
    assert any(said in mistake for mistake in mistakes(tmp_path, text))


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    assert len(mistakes(tmp_path, "[xid.79]\nseverity = 1\nname = 2\n[xid.y]\n")) == 3


def test_a_table_that_cannot_be_used_is_a_mistake_of_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "nodewarden.toml"
    config.write_text('[xid]\ntable = "own.toml"\n')
    with pytest.raises(ConfigError) as error:
        load_config(config)
    assert "xid.table" in str(error.value)
    assert "cannot be read" in str(error.value)
    (tmp_path / "own.toml").write_text("[xid.31]\nquiet_s = 60\n")
    assert load_config(config).xid.table == "own.toml"


def page() -> str:
    table = load_table()
    lines = [
        "# Xids",
        "",
        "An Xid is a number with which the NVIDIA driver names an error of a GPU, in the kernel's log and as an event.",
        "Nodewarden listens to both, counts each error once (`nodewarden_gpu_xid_total{uuid,xid}`), shows it in",
        "`nodectl status`, `nodectl gpus` and `nodectl explain`, and keeps it in `nodectl events`. It never caps,",
        "stops or resets anything for the sake of an Xid.",
        "",
        "| severity | problem | what it says |",
        "| --- | --- | --- |",
        "| application | `xid_application` (info) | the job's own doing, or a follow-up of another Xid; the GPU is not"
        " blamed |",
        "| warning | `xid_warning` | somebody should look |",
        "| critical | `xid_critical` | the GPU cannot be relied upon |",
        "",
        "An Xid is over after some time without another one (application: 10 minutes, warning: an hour, unless the row",
        "says otherwise), or, where the table says so, when the GPU was reset (its energy counter began anew, or it is",
        "back after it was lost), the driver loaded anew or the node rebooted. `nodectl xid clear GPU` ends it by",
        "hand. The counts stay, over restarts and reboots.",
        "",
        "`nodectl xid CODE` explains a row without an agent. A file of the same form as `xids.toml` of the package,",
        "named by `[xid] table` in the configuration, changes single keys of rows or adds rows:",
        "",
        "```toml",
        "[xid.109]",
        'severity = "critical"          # application, warning or critical',
        'clears = "reset"               # or "quiet", then with quiet_s',
        "```",
        "",
        "The driver's events need no right; the kernel's log needs root or CAP_SYSLOG where",
        '`kernel.dmesg_restrict` is 1, as the unit of the helper has it. `nodewarden_source_up{source="xid/kernel"}`',
        'and `{source="xid/nvml"}` say whether each is listened to; where',
        "`nodewarden_gpu_xid_source_events_total` differs between the two, one of them does not see everything.",
        "Errors of NVSwitches (SXid) come from the kernel's log only: `nodewarden_nvswitch_sxid_total{switch,sxid}`.",
        "",
        f"Table of {table.version}. Sources: NVIDIA's Xid catalogue and guide (docs.nvidia.com/deploy/xid-errors); the",
        "Kubernetes device plugin's list of application errors. Where they disagree, `xids.toml` says what was chosen.",
        "",
        "| Xid | name | severity | over | meaning | what to do |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for code in table.codes:
        row = table.row(code)
        over = "reset" if row.over_after_s is None else f"{row.over_after_s / 60:g} min"
        lines.append(f"| {code} | {row.name} | {row.severity} | {over} | {row.meaning} | {row.advice} |")
    row = table.unknown
    lines.append(f"| others | {row.name} | {row.severity} | 60 min | {row.meaning} | {row.advice} |")
    return "\n".join(lines) + "\n"


def test_the_reference_says_what_the_table_says() -> None:
    file = DOCS / "xid.md"
    if os.environ.get("NODEWARDEN_UPDATE_GOLDEN") == "1":
        file.write_text(page())
    assert file.read_text() == page(), "run with NODEWARDEN_UPDATE_GOLDEN=1 and look at the difference"
