"""The verifier: right on a golden table, unmoved by hostile text, its processes bounded."""

import json
import math
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from adversarial import WRONG, hostile
from patience import NEVER, alive, slowness, until

from trustclip.train.problems.verify import (
    AnswerReward,
    SoftOverlong,
    Verifier,
    compute_score,
    pool,
)

pytest.importorskip("math_verify")


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=2, timeout=1.2 * slowness()) as v:
        v.score(["1", "2"], [r"\boxed{\frac{2}{2}}", r"\boxed{\frac{4}{2}}"])  # both warm
        yield v


# Golds against answers, as math-verify and people judge them; `verify` is not symmetric.
RIGHT = [
    ("34", r"\sqrt{1156}"),
    ("34", r"34^\circ"),
    ("34", r"x\in\{34\}"),
    ("34", "17+17"),
    ("34", r"34.0\text{ units}"),
    ("10", r"\binom{5}{2}"),
    ("120", "5!"),
    (r"\frac{1}{2}", "0.5"),
    (r"2\sqrt{3}", r"\sqrt{12}"),
    (r"5\pi", r"\pi \cdot 5"),
    (r"(3, \frac{\pi}{2})", r"\left(3, \frac{\pi}{2}\right)"),
    ("[0,1)", "[0, 1)"),
    ("x^2+2x+1", "(x+1)^2"),
    (r"\{1,2\}", r"\{2,1\}"),
    (r"\frac{\sqrt{3}}{3}", r"\frac{\sqrt{3}}{3} \approx 0.577"),
    (r"\sqrt2", r"1.0\sqrt{2}"),
    (r"\frac{1}{3}", "0.333333"),
    ("1.414213562", r"\sqrt2"),
    (r"4.5\times10^{33}", "4.5e33"),
    (r"4.5\times10^{-3}", "4.5e-3"),
    ("4.5e+33", r"4.5\cdot 10^{33}"),
    ("2e^3", "e^3+e^3"),
]
NOT_RIGHT = [
    ("34", r"\sqrt{1157}"),
    (r"2\sqrt{3}", r"3\sqrt{2}"),
    (r"(3, \frac{\pi}{2})", r"(\frac{\pi}{2}, 3)"),
    ("[0,1)", "(0,1)"),
    (r"\{1,2\}", r"\{1,2,3\}"),
    (r"\frac{1}{2}", "0.51"),
    # An exact number is not its decimals, however many there are.
    (r"\sqrt2", "1.414213562"),
    (r"\sqrt2", r"\frac{2.828427124746}{2}"),
    (r"\sqrt2+\sqrt3", "3.14626436994"),
    (r"5\pi", "15.7079632679"),
    (r"4.5\times10^{33}", "4.5e34"),
    ("2e^3", "2e3"),
]


@pytest.mark.parametrize("style", ["<SOLUTION>%s</SOLUTION>", r"so $\boxed{%s}$.", "Answer: $%s$"])
def test_golden_table(verifier, style):
    cases = [*RIGHT, *NOT_RIGHT]
    scores = verifier.score([gold for gold, _ in cases], [style % answer for _, answer in cases])
    expected = [1.0] * len(RIGHT) + [0.0] * len(NOT_RIGHT)
    assert [c for c, s, e in zip(cases, scores, expected, strict=True) if s != e] == []


def equal(verifier: Verifier, gold: str, answer: str) -> bool:
    """Whether a boxed answer is right."""
    return verifier.score([gold], [rf"\boxed{{{answer}}}"]) == [1.0]


def test_no_false_positive_on_adversarial_text(verifier):
    assert len(set(WRONG)) >= 60
    scores = verifier.score([gold for gold, _ in WRONG], [text for _, text in WRONG])
    assert [case for case, score in zip(WRONG, scores, strict=True) if score] == []


def test_hostile_answers_are_bounded_and_leave_their_neighbours_alone(verifier):
    before = verifier.counts["timeout"]
    right = [rf"\boxed{{\frac{{{2 * k}}}{{{k}}}}}" for k in (11, 12)]  # each a question
    texts = [text for pair in zip(hostile(2), right, strict=True) for text in pair]
    assert verifier.score(["2"] * 4, texts) == [0.0, 1.0] * 2
    assert verifier.counts["timeout"] - before == 2


def test_equal_questions_are_asked_once_but_counted_each(verifier):
    before = verifier.counts["timeout"]
    assert verifier.score(["2"] * 32, hostile(1) * 32) == [0.0] * 32
    assert verifier.counts["timeout"] - before == 32


def _host(verifier: Verifier) -> int:
    process = verifier._pool._workers[0]._process
    assert process is not None
    return process.pid


def test_processes_are_bounded_recycled_and_ended():
    v = Verifier(workers=1, timeout=NEVER, memory_limit=3 << 29, recycle_after=2)
    host, judges = 0, set()
    for k in range(1, 6):
        assert equal(v, "2", rf"\frac{{{2 * k}}}{{{k}}}")
        host = _host(v)
        for pid in (host, *_children(host)):
            assert resource.prlimit(pid, resource.RLIMIT_AS) == (3 << 29, 3 << 29)
        judges.update(_children(host))
    assert len(judges) == 3
    v.close()
    v.close()
    until(lambda: not any(alive(pid) for pid in (host, *judges)))
    with pytest.raises(ValueError, match="closed"):
        equal(v, "2", r"\frac{4}{2}")
    assert v.score(["2"], ["Answer: 2"]) == [1.0]


def test_a_process_killed_from_outside_costs_the_answer_it_was_judging(verifier):
    before = verifier.counts.copy()
    for worker in verifier._pool._workers:  # idle: nothing is lost
        os.killpg(worker._process.pid, signal.SIGKILL)
        worker._process.wait()
    texts = [rf"\boxed{{\frac{{{2 * k}}}{{{k}}}}}" for k in range(1, 9)]
    assert verifier.score(["2"] * 8, texts) == [1.0] * 8
    busy = threading.Thread(target=verifier.score, args=(["2"] * 2, hostile(2)))
    judges = [_children(worker._process.pid)[0] for worker in verifier._pool._workers]
    used = {judge: _cpu_ticks(judge) for judge in judges}
    busy.start()
    until(lambda: all(_cpu_ticks(judge) > used[judge] + 5 for judge in used))  # both are at work
    os.killpg(verifier._pool._workers[0]._process.pid, signal.SIGKILL)
    busy.join()
    assert verifier.counts - before == {"algebra": 8, "crash": 1, "timeout": 1}


def test_threads_share_a_verifier(verifier):
    wrong: list[int] = []

    def ask(k: int) -> None:
        golds = [str(k + i) for i in range(10)]
        texts = [rf"\boxed{{\frac{{{2 * (k + i)}}}{{2}}}}" for i in range(9)] + [
            r"\boxed{\frac{1}{2}}"
        ]
        if verifier.score(golds, texts) != [1.0] * 9 + [0.0]:
            wrong.append(k)

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_no_signal_handler_or_alarm_is_touched(verifier):
    marker = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    try:
        verifier.score(["2"], [r"\boxed{\frac{6}{3}}"])
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    finally:
        signal.signal(signal.SIGALRM, marker)


def test_integers_never_start_a_process(monkeypatch):
    monkeypatch.setattr(pool.subprocess, "Popen", lambda *_, **__: pytest.fail("process started"))
    with Verifier() as v:
        golds = ["34", "1000", "-5", "7", "7", "7", "7", 34, 34.0]
        texts = [r"\boxed{034}", r"Answer: 1\,000", "<SOLUTION>−5.0</SOLUTION>", "so 8", "none"]
        texts += ["3 4", r"\boxed{9^{9^{9^9}}}", "Answer: 34", "Answer: 34"]
        assert v.score(golds, texts) == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]
        assert v.counts == {"direct": 8, "no_answer": 1}


def test_a_missing_math_verify_is_said_and_not_scored(monkeypatch):
    monkeypatch.setattr(pool.importlib.util, "find_spec", lambda _: None)
    with Verifier() as v, pytest.raises(ImportError, match=r"pip install 'trustclip\[train\]'"):
        v.score(["2"], [r"\boxed{\frac{4}{2}}"])


@pytest.mark.parametrize("program", ["/bin/true", "/nowhere/python"])
def test_a_worker_that_cannot_start_costs_its_answer_and_says_so(monkeypatch, caplog, program):
    monkeypatch.setattr(pool.sys, "executable", program)
    with Verifier() as v:
        assert v.score(["2", "3"], [r"\boxed{\frac{4}{2}}", r"\boxed{3}"]) == [0.0, 1.0]
        assert v.counts == {"timeout": 1, "direct": 1}
    assert "did not start" in caplog.text and "tried 2 times" in caplog.text


def test_a_worker_that_dies_while_it_starts_is_started_again(monkeypatch, tmp_path):
    once = tmp_path / "python"
    once.write_text(
        f"#!/bin/sh\n[ -e {tmp_path}/tried ] || {{ touch {tmp_path}/tried; kill -9 $$; }}\n"
        f'exec {sys.executable} "$@"\n'
    )
    once.chmod(0o755)
    monkeypatch.setattr(pool.sys, "executable", str(once))
    with Verifier(workers=1, timeout=NEVER) as v:
        assert v.score(["2"], [r"\boxed{\frac{4}{2}}"]) == [1.0]


def test_closing_while_a_worker_starts_gives_no_error(monkeypatch, tmp_path):
    slow = tmp_path / "python"
    slow.write_text(f"#!/bin/sh\ntouch {tmp_path}/begun\nexec sleep 1000\n")
    slow.chmod(0o755)
    monkeypatch.setattr(pool.sys, "executable", str(slow))
    v = Verifier(workers=1)
    scores: list[float] = []
    asking = threading.Thread(target=lambda: scores.extend(v.score(["2"], [r"\boxed{4/2}"])))
    asking.start()
    until((tmp_path / "begun").exists)
    v.close()
    asking.join()
    assert scores == [0.0] and v.counts == {"crash": 1}


def test_a_broken_math_verify_is_an_error(monkeypatch, tmp_path):
    broken = tmp_path / "python"
    broken.write_text('#!/bin/sh\necho \'{"error": "SyntaxError: bad"}\'\n')
    broken.chmod(0o755)
    monkeypatch.setattr(pool.sys, "executable", str(broken))
    with Verifier() as v, pytest.raises(RuntimeError, match="did not start: SyntaxError: bad"):
        v.score(["2"], [r"\boxed{\frac{4}{2}}"])


SCRIPT = """
    import os, sys
    from trustclip.train.problems.verify import Verifier
    v = Verifier(workers=1, timeout=600.0)
    print(v.score(["2", "2"], ["Answer: 4/2", "Answer: 5/2"]), flush=True)
    print(v._pool._workers[0]._process.pid, flush=True)
"""


def _script(tmp_path: Path, ending: str) -> subprocess.Popen[str]:
    path = tmp_path / "no_main_guard.py"
    path.write_text(textwrap.dedent(SCRIPT + ending))
    return subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_script_leaves_no_process_behind(tmp_path):
    output, _ = _script(tmp_path, "").communicate(timeout=NEVER)
    until(lambda: not alive(int(output.splitlines()[1])))


def test_no_main_guard_is_needed_and_workers_do_not_outlive_a_killed_trainer(tmp_path):
    process = _script(tmp_path, "    __import__('time').sleep(600)\n")
    assert process.stdout is not None
    assert process.stdout.readline() == "[1.0, 0.0]\n"
    pid = int(process.stdout.readline())
    assert alive(pid)
    process.kill()
    process.communicate()
    until(lambda: not alive(pid))


def right_in_a_fork(verifier):
    child = os.fork()
    if child == 0:
        right = equal(verifier, "3", r"\frac{9}{3}")
        verifier.close()
        os._exit(0 if right else 1)
    return os.waitpid(child, 0)[1] == 0


def test_a_forked_copy_neither_uses_nor_kills_its_parents_workers(verifier):
    verifier.score(["3", "4"], [r"\boxed{\frac{6}{2}}", r"\boxed{\frac{8}{2}}"])  # both run
    hosts = [worker._process.pid for worker in verifier._pool._workers]
    assert right_in_a_fork(verifier)
    assert verifier.score(["5", "7"], [r"\boxed{\frac{10}{2}}", r"\boxed{\frac{14}{2}}"]) == [
        1.0,
        1.0,
    ]
    assert [worker._process.pid for worker in verifier._pool._workers] == hosts


@pytest.mark.slow
def test_a_fork_while_another_thread_scores_leaves_the_child_a_working_verifier():
    with Verifier(workers=1, timeout=NEVER) as v:
        assert equal(v, "3", r"\frac{6}{2}")
        busy = threading.Thread(target=v.score, args=(["2"], hostile(1)))
        busy.start()
        until(lambda: v._pool._idle.empty())
        assert right_in_a_fork(v)
        os.killpg(_host(v), signal.SIGKILL)
        busy.join()


BUSY = r"""
    import threading, time
    from trustclip.train.problems.verify import Verifier
    v = Verifier(workers=1, timeout=100_000.0)
    v.score(["2"], [r"\boxed{\frac{4}{2}}"])
    threading.Thread(target=v.score, args=(["2"], [HOSTILE])).start()
    while not v._pool._idle.empty(): time.sleep(0.01)
    print(v._pool._workers[0]._process.pid, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["trainer", "host"])
def test_a_judge_at_work_ends_with_the_process_that_wanted_its_verdict(tmp_path, killed):
    path = tmp_path / "busy.py"
    path.write_text(textwrap.dedent(BUSY).replace("HOSTILE", repr(hostile(1)[0])))
    trainer = subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    host = int(trainer.stdout.readline())
    (judge,) = _children(host)
    used = _cpu_ticks(judge)
    until(lambda: _cpu_ticks(judge) > used + 20)  # it is at work
    os.kill(trainer.pid if killed == "trainer" else host, signal.SIGKILL)
    until(lambda: not alive(judge))  # its own limit is a day of CPU away
    trainer.kill()
    trainer.communicate()
    until(lambda: not alive(host))


@pytest.mark.slow
def test_a_judge_whose_host_is_stopped_ends_at_its_own_cpu_limit():
    script = Path(pool.__file__).with_name("worker.py")
    host = subprocess.Popen(
        [sys.executable, "-P", str(script), str(2 << 30), "100"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert host.stdin is not None and host.stdout is not None
    assert json.loads(host.stdout.readline()) == {"ready": True}
    answer = hostile(1)[0].removeprefix(r"\boxed{").removesuffix("}")
    task = {"gold": "2", "answer": answer, "timeout": 3.0}
    host.stdin.write(json.dumps(task).encode() + b"\n")
    host.stdin.flush()
    until(lambda: len(_children(host.pid)) == 1)
    (judge,) = _children(host.pid)
    until(lambda: _cpu_ticks(judge) > 2)  # it has its task, and so its limit
    os.kill(host.pid, signal.SIGSTOP)  # nobody is left to watch the judge
    until(lambda: not alive(judge))
    host.kill()
    host.communicate()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers=0"),
        ({"workers": 1.5}, "workers=1.5"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": math.inf}, "timeout=inf"),
        ({"timeout": math.nan}, "timeout=nan"),
        ({"memory_limit": 1}, "memory_limit=1"),
        ({"recycle_after": 0}, "recycle_after=0"),
    ],
)
def test_bad_settings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Verifier(**arguments)


def test_a_missing_gold_is_an_error_and_a_list_holds_alternatives(verifier):
    for gold in (None, math.nan, [], [None]):
        with pytest.raises(ValueError, match="is missing"):
            verifier.score([gold], ["Answer: nan"])
    golds = [["2", "-2"], ("1", "3"), "['9.6\\n']", '["a cat", "a dog"]', "[1, 2]", ["5"]]
    texts = ["-2", "3", "9.6", "A dog", "[1,2]", "6"]
    assert verifier.score(golds, [f"Answer: {t}" for t in texts]) == [1.0] * 5 + [0.0]
    before = verifier.counts.copy()
    assert verifier.score([["7", r"\frac{1}{2}"]], ["Answer: 0.5"]) == [1.0]
    assert verifier.counts - before == {"algebra": 1}  # an answer counts once


def test_words_are_graded_as_text_whatever_the_style(verifier):
    pairs = [("silent", "listen"), ("on", "no"), ("New York", "York New"), ("cold", "docl")]
    for gold, other in pairs:
        texts = [f"<SOLUTION>{t}</SOLUTION>" for t in (other, gold, gold.upper())]
        assert verifier.score([gold] * 3, texts) == [0.0, 1.0, 1.0]
    assert verifier.score(["True"], [r"so \boxed{\text{true}}"]) == [1.0]


def test_boxes_joined_by_and_are_one_list(verifier):
    gold = "$(2,1),(1,2),(-1,-20),(-20,-1)$"
    boxes = r"\boxed{(1, 2)}, \boxed{(2, 1)}, \boxed{(-1, -20)} and \boxed{(-20, -1)}"
    assert verifier.score(
        [gold, "1,2", "34"], [boxes, r"$\boxed{1}$ and $\boxed{2}$", r"\boxed{34} and \boxed{35}"]
    ) == [1.0, 1.0, 0.0]


def test_bad_calls_are_refused():
    v = Verifier()
    with pytest.raises(ValueError, match="2 golds for 1 responses"):
        v.score(["1", "2"], ["1"])
    with pytest.raises(ValueError, match=r"unknown style 'boxd'; did you mean 'boxed'"):
        v.score(["1"], ["1"], style="boxd")  # type: ignore[arg-type]
    assert v.score(["1", "1"], [None, 1]) == [0.0, 0.0]  # type: ignore[list-item]
    assert v.score([], []) == []


def test_trl_reward_takes_text_and_conversations():
    reward = AnswerReward(style="boxed")
    texts = [r"\boxed{3}", r"\boxed{4}"]
    columns = {"answer": ["3", "3"], "trainer_state": None, "completion_ids": [[1], [2]]}
    assert reward(prompts=["a", "b"], completions=texts, **columns) == [1.0, 0.0]
    conversations = [[{"role": "assistant", "content": text}] for text in texts]
    assert reward(prompts=["a", "b"], completions=conversations, **columns) == [1.0, 0.0]
    assert reward.__name__ == "answer_reward"


def test_verl_score():
    assert compute_score("aime", r"\boxed{34}", "34", extra_info={}, split="train") == 1.0
    assert compute_score("aime", r"\boxed{34}", 35) == 0.0
    assert compute_score("aime", r"\boxed{34}", "34", style="solution") == 0.0


def test_soft_overlong_punishment_is_that_of_dapo():
    reward = SoftOverlong(max_length=100, cache=20)
    lengths = [0, 80, 81, 90, 100, 101, 1000]
    scores = reward(prompts=None, completions=None, completion_ids=[[1] * n for n in lengths])
    assert scores == [0.0, 0.0, -0.05, -0.5, -1.0, -1.0, -1.0]
    with pytest.raises(ValueError, match="cache=0"):
        SoftOverlong(max_length=100, cache=0)


def _children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
