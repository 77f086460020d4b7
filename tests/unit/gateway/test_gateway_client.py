"""Finding a gateway and talking to its admin calls; every fault in words."""

import json
from pathlib import Path

import pytest
from scripted_upstream import answers, dead_url, gateway, plain, upstream

from tasks.gateway import client
from tasks.gateway.client import Gateway, GatewayFailed
from tasks.stage import StageFailed


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch, armwise_home: Path) -> None:
    for name in ("ARMWISE_GATEWAY_URL", "ARMWISE_GATEWAY_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def announce(home: Path, to: Gateway) -> None:
    (home / "gateway" / "address.json").write_text(json.dumps({"url": to.url, "pid": 1}))


def test_none_is_found_where_none_runs(armwise_home: Path) -> None:
    assert client.find() is None
    (armwise_home / "gateway").mkdir()
    (armwise_home / "gateway" / "address.json").write_text("{")
    assert client.find() is None


def test_the_one_of_this_home_is_found_and_takes_arms(armwise_home: Path) -> None:
    with gateway(armwise_home / "gateway") as to:
        announce(armwise_home, to)
        found = client.find()
        assert found == to
        client.register(found, "a", "http://127.0.0.1:9/", "m", "key", "run-1")
        rows = client.registered(found)
        assert [(r["technique"], r["url"], r["model"], r["run_id"]) for r in rows] == [
            ("a", "http://127.0.0.1:9", "m", "run-1")
        ]
        assert [client.deregister(found, "a", "run-1") for _ in range(2)] == [True, False]


def test_an_address_left_by_a_dead_gateway_finds_none(armwise_home: Path) -> None:
    with gateway(armwise_home / "gateway") as to:
        announce(armwise_home, to)
    assert client.find() is None


def test_another_server_on_the_port_is_no_gateway(armwise_home: Path) -> None:
    with upstream(answers(plain(b'{"status":"ok"}'))) as server:
        assert not client.answers(Gateway(server.url, "t"))
    with upstream(answers(plain(b"[]"))) as server:
        assert not client.answers(Gateway(server.url, "t"))


def test_the_one_that_the_user_named_goes_first(armwise_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gateway(armwise_home / "gateway") as home, gateway(armwise_home / "named") as named:
        announce(armwise_home, home)
        monkeypatch.setenv("ARMWISE_GATEWAY_URL", named.url + "/")
        monkeypatch.setenv("ARMWISE_GATEWAY_TOKEN", named.token)
        assert client.find() == named


def test_a_named_one_that_does_not_answer_is_an_error_not_a_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    url = dead_url()
    monkeypatch.setenv("ARMWISE_GATEWAY_URL", url)
    with pytest.raises(GatewayFailed, match=f"ARMWISE_GATEWAY_URL={url}: no armwise gateway answers"):
        client.find()


def test_a_refusal_comes_with_the_gateways_words(armwise_home: Path) -> None:
    with upstream(answers(plain(b"{}"))) as server, gateway(armwise_home / "gateway") as to:
        client.register(to, "a", server.url, "m", None, "run-1")
        with pytest.raises(GatewayFailed, match="url: must be http://HOST"):
            client.register(to, "b", "file:///etc", "m", None, "run-2")
        with pytest.raises(GatewayFailed, match="Authorization: must be"):
            client.register(Gateway(to.url, "wrong"), "b", server.url, "m", None, "run-2")


def test_a_gateway_that_is_gone_is_told_in_words() -> None:
    gone = Gateway(dead_url(), "t")
    with pytest.raises(StageFailed, match=r"gateway http://127\.0\.0\.1:\d+: POST /admin/backends: .*refused"):
        client.register(gone, "a", "http://127.0.0.1:9", "m", None, "run-1")
    with upstream(answers(plain(b"<html>"))) as server, pytest.raises(GatewayFailed, match="answered 200, not JSON"):
        client.deregister(Gateway(server.url, "t"), "a", "run-1")


def test_waiting_has_a_deadline(tmp_path: Path) -> None:
    with pytest.raises(GatewayFailed, match=r"no gateway answered within 0\.2 s"):
        client.wait(tmp_path, deadline_s=0.2)


def test_a_technique_is_quoted_in_the_path(armwise_home: Path) -> None:
    with gateway(armwise_home / "gateway") as to:
        assert client.deregister(to, "a b?run_id=run-2#c", "run-1") is False


def test_the_token_is_not_in_what_is_printed() -> None:
    assert "secret" not in repr(Gateway("http://host", "secret"))
