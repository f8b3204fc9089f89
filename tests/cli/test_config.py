"""Every mistake of a configuration is named at once, with its place and what is allowed; secrets never show."""

import socket
import stat
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodewarden.config import Config, Secret, load_config
from nodewarden.errors import ConfigError


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "nodewarden.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(0o640)
    return path


def problems_of(path: Path, **options) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, **options)
    return [line.replace(f"{path}", "F") for line in caught.value.problems]


def test_an_empty_file_is_a_valid_configuration_with_every_default(tmp_path):
    config = load_config(write(tmp_path, ""), hostname="gpu-node-07.example.org")
    assert config.node.name == "gpu-node-07"
    assert config.limits.target_margin_c == 2
    assert config.sampling.gpu_fast_s == 1
    assert (config.http.host, config.http.port) == ("0.0.0.0", 10048)
    assert config.pdu == ()
    assert config.warnings == ()


def test_a_node_whose_host_name_is_odd_still_gets_a_usable_name(tmp_path):
    assert load_config(write(tmp_path, ""), hostname="_öä.example").node.name == "node"


EXAMPLE = """
[node]
name = "gpu-node-07"
expected_gpus = 8
[limits]
target_margin_c = 2
node_power_w = 5200
failsafe_w = 350
[sampling]
gpu_fast_s = 1.0
[[pdu]]
name = "rack12-a"
feed = "A"
host = "192.0.2.10"
port = 161
version = "3"
user = "monitor"
auth = { protocol = "sha", secret_file = "${CREDENTIALS_DIRECTORY}/pdu_auth" }
priv = { protocol = "aes", secret_file = "${CREDENTIALS_DIRECTORY}/pdu_priv" }
outlets = [7, 8]
limit_w = 6000
[http]
listen = "0.0.0.0:10048"
[mqtt]
host = "broker.example"
[jobs]
verify = "gpu-process"
"""


def test_the_example_of_the_design_is_valid(tmp_path):
    for name in ("pdu_auth", "pdu_priv"):
        (tmp_path / name).write_text(f"{name}-secret\n")
        (tmp_path / name).chmod(0o600)
    config = load_config(write(tmp_path, EXAMPLE), environment={"CREDENTIALS_DIRECTORY": str(tmp_path)})
    (pdu,) = config.pdu
    assert pdu.auth is not None
    assert pdu.auth.secret is not None
    assert pdu.auth.secret.reveal() == "pdu_auth-secret"
    assert pdu.outlets == (7, 8)
    assert config.warnings == ()
    (tmp_path / "pdu_priv").write_text("short12\n")
    (mistake,) = problems_of(tmp_path / "nodewarden.toml", environment={"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert "pdu[0].priv: its password is shorter than 8 bytes" in mistake
    assert "short12" not in mistake


def test_the_broker_needs_what_belongs_together_and_its_files_are_found_beside_the_configuration(tmp_path):
    (tmp_path / "secret").write_text("hush\n")
    (tmp_path / "secret").chmod(0o600)
    good = '[mqtt]\nhost = "b"\ntls = true\nuser = "u"\npassword_file = "secret"\nca_file = "ca.pem"\n'
    mqtt = load_config(write(tmp_path, good)).mqtt
    assert mqtt is not None
    assert mqtt.password is not None
    assert (mqtt.broker_port, mqtt.ca_file, mqtt.password.reveal()) == (8883, str(tmp_path / "ca.pem"), "hush")
    assert "hush" not in repr(mqtt)
    bad = '[mqtt]\nhost = "b"\npassword_file = "secret"\nca_file = "ca.pem"\ncert_file = "c.pem"\ntopic = "a/#"\n'
    said = "\n".join(problems_of(write(tmp_path, bad)))
    assert "mqtt.topic" in said
    said = "\n".join(problems_of(write(tmp_path, bad.replace("a/#", "a"))))
    for part in ("mqtt.ca_file: belongs to TLS", "mqtt.cert_file: needs key_file", "mqtt.password_file: needs user"):
        assert part in said


def test_a_credential_that_only_the_service_has_is_an_error_for_the_agent_and_a_warning_offline(tmp_path):
    path = write(tmp_path, EXAMPLE)
    assert len(problems_of(path, environment={})) == 2
    config = load_config(path, environment={}, offline=True)
    assert sum("CREDENTIALS_DIRECTORY" in w for w in config.warnings) == 2


def test_all_mistakes_are_reported_at_once_each_with_line_key_and_what_is_allowed(tmp_path):
    text = """\
[limits]
node_powr_w = 400
failsafe_w = "400 W"
target_margin_c = 400000
[sampling]
interval = 5
gpu_fast_s = nan
gpu_slow_s = 0.5
[node]
expected_gpus = "on"
[[pdu]]
name = "a"
host = "192.0.2.1"
community = "c0mmun1ty"
outlets = ["010"]
[[pdu]]
name = "a"
host = "192.0.2.1:161"
version = 3
limit_w = 100
[http]
listen = "10048"
"""
    assert problems_of(write(tmp_path, text)) == [
        'F:2: limits.node_powr_w: is not a known key; did you mean "node_power_w"?',
        'F:3: limits.failsafe_w: found the text "400 W", allowed: a number from 50 to 3000 (watts per GPU)',
        "F:4: limits.target_margin_c: found 400000, allowed: a number from 0 to 30 (degC below max-operating)",
        "F:6: sampling.interval: is not a known key; allowed: gpu_fast_s, gpu_slow_s, nvlink_raw, host_s, "
        "pdu_totals_s, pdu_outlets_s, pdu_other_outlets_s",
        "F:7: sampling.gpu_fast_s: found nan, allowed: a number from 0.1 to 60 (seconds)",
        "F:8: sampling.gpu_slow_s: found 0.5, allowed: a number from 1 to 600 (seconds)",
        'F:10: node.expected_gpus: found the text "on", allowed: a whole number from 0 to 64',
        'F:15: pdu[0].outlets[0]: found the text "010", allowed: a whole number from 1 to 999 (outlet number)',
        'F:17: pdu[1].name: "a" is also the name of pdu[0], allowed: unique names',
        "F:18: pdu[1].host: has a colon, allowed: a name or an address; the port is a key of its own",
        'F:19: pdu[1].version: found 3, allowed: one of "1", "2c", "3"',
        "F:20: pdu[1].limit_w: bounds the sum of `outlets`, but none are named, needed: outlets = [7, 8]",
        'F:22: http.listen: found "10048", allowed: "ADDRESS:PORT" with a port from 1 to 65535, such as '
        '"0.0.0.0:10048" or "[::]:10048"',
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[limits]\nfailsafe_w = 300\nfailsafe_w = 400\n", "F:3: written twice"),
        ("[limits]\n[node]\n[limits]\n", "F:3: written twice"),
        ("[limits]\nfailsafe_w = \n", "F:2: not valid TOML"),
        ("limits = [[[", "F:1: not valid TOML"),
        (b"[node]\nname = '\xff'\n", "F:2: is not UTF-8"),
    ],
)
def test_a_file_that_is_not_toml_is_named_with_its_line(tmp_path, text, said):
    (line,) = problems_of(write(tmp_path, text))
    assert line.startswith(said)


def test_a_missing_file_and_a_directory_say_what_to_do(tmp_path):
    (line,) = problems_of(tmp_path / "none.toml")
    assert "No such file" in line
    assert "--config" in line
    (line,) = problems_of(tmp_path)
    assert "cannot be read" in line


PDU = '[[pdu]]\nname = "a"\nhost = "192.0.2.1"\n'


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("", 'F:1: pdu[0]: version "2c" needs community_file (or community)'),
        ('community = "x"\ncommunity_file = "y"', "pdu[0]: has both community and community_file"),
        ('version = "3"', 'pdu[0]: version "3" needs user'),
        ('version = "3"\nuser = "u"\ncommunity = "x"', 'pdu[0]: version "3" has no community'),
        ('community = "x"\nuser = "u"', 'F:5: pdu[0].user: belongs to version "3"'),
        ('community = ""', "F:4: pdu[0].community: found no text"),
        ('community = "x"\noutlets = [3, 3]', "F:5: pdu[0].outlets: names outlet 3 twice"),
        ('community_file = "none"', "F:4: pdu[0].community_file: none cannot be read: No such file"),
        ('community_file = "$HOME/c"', "F:4: pdu[0].community_file: has a $"),
    ],
)
def test_a_pdu_needs_exactly_the_secrets_of_its_version(tmp_path, keys, said):
    assert any(said in line for line in problems_of(write(tmp_path, PDU + keys)))


def test_a_secret_file_is_read_without_its_newline_and_a_readable_one_is_warned_of(tmp_path):
    (tmp_path / "c").write_text("hush-hush\n")
    (tmp_path / "c").chmod(0o644)
    config = load_config(write(tmp_path, PDU + 'community_file = "c"'))
    assert config.pdu[0].community == Secret("hush-hush")
    (warning,) = config.warnings
    assert "can be read by everyone" in warning
    (tmp_path / "c").chmod(0o600)
    assert load_config(tmp_path / "nodewarden.toml").warnings == ()


def test_a_community_in_a_world_readable_file_is_warned_of(tmp_path):
    path = write(tmp_path, PDU + 'community = "hush-hush"')
    assert load_config(path).warnings == ()
    path.chmod(path.stat().st_mode | stat.S_IROTH)
    (warning,) = load_config(path).warnings
    assert "use community_file" in warning
    assert "hush" not in warning


def test_secrets_show_nowhere_not_in_repr_not_in_json_not_in_messages(tmp_path):
    secret = "Xq7-unique-secret"
    config = load_config(write(tmp_path, PDU + f'community = "{secret}"'))
    assert config.pdu[0].community is not None
    assert config.pdu[0].community.reveal() == secret
    assert secret[:6] not in repr(config)
    assert f"{config.pdu[0].community}" == "***"
    with pytest.raises(TypeError):
        msgspec.json.encode(config)
    wrong = f"""
[[pdu]]
name = "a"
host = "https://admin:{secret}@192.0.2.1/"
comunity = "{secret}"
auth = "{secret}"
community = ["{secret}"]
priv = {{ protocol = "aes", secret = "{secret}" }}
"""
    lines = problems_of(write(tmp_path, wrong))
    assert len(lines) >= 6
    assert secret[:6] not in "\n".join(lines)


def test_an_overlay_for_this_host_changes_only_what_it_names(tmp_path):
    text = """
[node]
expected_gpus = 8
[limits]
node_power_w = 5200
failsafe_w = 350
[[pdu]]
name = "rack-a"
host = "192.0.2.1"
community = "x"
[host."cpu-node-01".node]
expected_gpus = 0
[host.gpu-node-08.limits]
node_power_w = 4000
[[host.gpu-node-08.pdu]]
name = "rack-b"
host = "192.0.2.2"
community = "y"
outlets = [1, 2]
"""
    path = write(tmp_path, text)
    assert load_config(path, hostname="cpu-node-01").node.expected_gpus == 0
    other = load_config(path, hostname="gpu-node-08.example.org")
    assert other.node.expected_gpus == 8
    assert (other.limits.node_power_w, other.limits.failsafe_w) == (4000, 350)
    assert [p.name for p in other.pdu] == ["rack-b"]
    assert load_config(path, hostname="gpu-node-09").limits.node_power_w == 5200


def test_mistakes_in_the_overlay_of_another_host_are_found_too(tmp_path):
    text = '[host."gpu-node-08".limits]\nfailsafe_w = 1\n[[host.a.pdu]]\nname = "p"\nhost = "h"\n'
    assert problems_of(write(tmp_path, text), hostname="gpu-node-09") == [
        "F:2: host.gpu-node-08.limits.failsafe_w: found 1, allowed: a number from 50 to 3000 (watts per GPU)",
        'F:3: host.a.pdu[0]: version "2c" needs community_file (or community)',
    ]


TOML_VALUES = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=8),
        st.dates(),
    ),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(
    ["node", "limits", "pdu", "http", "jobs", "mqtt", "host", "name", "gpus", "failsafe_w", "outlets", "community"]
)
TABLES = st.recursive(
    st.dictionaries(KEYS, TOML_VALUES, max_size=4),
    lambda inner: st.dictionaries(KEYS, st.one_of(inner, st.lists(inner, max_size=2), TOML_VALUES), max_size=4),
    max_leaves=12,
)


def toml_of(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case dict():
            return "{" + ", ".join(f"{k} = {toml_of(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ", ".join(toml_of(v) for v in value) + "]"
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case float():
            return repr(value)
        case _:
            return str(value)


def outcome(path: Path) -> Config | list[str]:
    try:
        return load_config(path, hostname="h", environment={})
    except ConfigError as error:
        return error.problems


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TABLES)
def test_any_toml_is_either_accepted_or_explained(tmp_path, table):
    text = "\n".join(f"{key} = {toml_of(value)}" for key, value in table.items())
    result = outcome(write(tmp_path, text))
    assert isinstance(result, Config) or (result and all(line.startswith(str(tmp_path)) for line in result))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200)))
def test_any_bytes_are_either_accepted_or_explained(tmp_path, raw):
    path = tmp_path / "any.toml"
    path.write_bytes(raw if isinstance(raw, bytes) else raw.encode("utf-8", "surrogatepass"))
    result = outcome(path)
    assert isinstance(result, Config) or len(result) >= 1


def test_deep_nesting_is_a_message_not_a_crash(tmp_path):
    result = outcome(write(tmp_path, "a = " + "[" * 5000 + "]" * 5000))
    assert isinstance(result, list)
    assert "nested too deeply" in result[0]


def test_the_name_of_this_machine_is_the_default(tmp_path):
    config = load_config(write(tmp_path, ""))
    assert config.node.name[0] == socket.gethostname()[0]
    assert config.path == tmp_path / "nodewarden.toml"
