r"""Completions written to stall or fool a verifier: none of them is worth anything.

`WRONG` pairs a gold with a completion whose final answer is not the gold, is not a single answer or
is not an answer at all; every one must score 0.0. `hostile` makes answers that a computer-algebra
system cannot finish in reasonable time or memory, and that reach it because no filter of syntax can
be complete.
"""

NUL, RTL, ZERO_WIDTH = "\x00", "\u202e", "\u200b"

POWERS = [
    ("2", r"\boxed{9^{9^{9^{9}}}}"),
    ("2", r"\boxed{10^{10^{8}}}"),
    ("2", "Answer: 10^10^10^10"),
    ("2", r"\boxed{((((9^{999})^{999})^{999})^{999})^{999}}"),
    ("2", r"\boxed{2^{-99999999}}"),
    ("2", r"\boxed{\sqrt[7]{\sqrt[5]{\sqrt[3]{2+\sqrt{5}}}}^{123456789}}"),
]

COMBINATORICS = [
    ("2", r"\boxed{(10^{9})!}"),
    ("2", r"\boxed{((99!)!)!}"),
    ("2", r"\boxed{\binom{1000000000}{500000000}}"),
    ("2", r"\boxed{\sum_{k=1}^{10000000} k^k}"),
    ("2", r"\boxed{\int_0^1 \frac{\sin(x^{x})}{\ln(1+x^{7})} dx}"),
    ("2", r"\boxed{\lim_{n\to\infty} n^{n^{n}}}"),
]

LONG = [
    ("2", r"\boxed{" + "1+" * 25_000 + "1}"),
    ("2", r"\boxed{" + "9" * 50_000 + "}"),
    ("2", "Answer: " + "-" * 50_000 + "2"),
    ("2", "<SOLUTION>" + " " * 300 + "3" + " 2" * 50_000 + "</SOLUTION>"),
    ("2", "\\" * 50_000),
    ("2", "the answer is " * 4_000),
]

NESTING = [
    ("1", r"\boxed{" + "(" * 2_000 + "1" + ")" * 2_000 + "}"),
    ("1", r"\boxed{" + "{" * 25_000 + "1" + "}" * 25_000 + "}"),
    ("1", r"\boxed{" + r"\frac{1}{" * 300 + "1" + "}" * 300 + "}"),
    ("1", r"\boxed{" * 7_000),
    ("1", "{" * 50_000 + "}" * 49_999),
    ("1", r"\boxed{1"),
]

CHARACTERS = [
    ("34", f"\\boxed{{3{NUL}4}}"),
    ("34", f"<SOLUTION>34{NUL}</SOLUTION>"),
    ("34", f"\\boxed{{{RTL}43}}"),
    ("34", f"Answer: 3{ZERO_WIDTH}4"),
    ("34", "Answer: \u06f3\u06f4"),
    ("34", "Answer: \u2463\u2463"),
    ("34", "\\boxed{\ud83d34}"),
    ("34", ""),
]

SEVERAL = [
    ("34", "<SOLUTION>34</SOLUTION><SOLUTION>12</SOLUTION>"),
    ("34", "<SOLUTION>12</SOLUTION> or rather <SOLUTION>34</SOLUTION>"),
    ("34", r"$\boxed{34}$ or $\boxed{12}$"),
    ("34", r"\boxed{12}, \boxed{34}, and \boxed{56}"),
    (r"\frac{1}{2}", r"\boxed{\frac{1}{3}} and \boxed{\frac{1}{2}}"),
    ("34", "".join(rf"\boxed{{{n}}}" for n in range(500))),
    ("34", "Answer: 12\nAnswer: 34"),
    ("34", r"Answer: 34\text{ or }12"),
    ("34", r"\boxed{34\text{ (or 35)}}"),
    ("34", r"\boxed{\{34, 35\}}"),
    ("34", r"\boxed{\pm 34}"),
    ("34", r"\boxed{x=12, x=34}"),
    ("34", r"\boxed{12=34}"),
    ("34", r"\boxed{34\approx 35}"),
    ("34", r"\boxed{[0,100]}"),
    ("34", r"\boxed{x\ge 34}"),
    ("34", "<SOLUTION>34\n12</SOLUTION>"),
]

TAGS = [
    ("34", "<SOLUTION>34"),
    ("34", "<SOLUTION></SOLUTION>34"),
    ("34", r"<SOLUTION>12</SOLUTION> \boxed{34} Answer: 34"),
    ("34", "<SOLUTION><SOLUTION>12</SOLUTION></SOLUTION>34"),
    ("34", r"<SOLUTION>\boxed{12}\boxed{34}</SOLUTION>"),
    ("34", "Answer: $Answer"),
    ("34", r"\boxed{} 12"),
]

MEANING = [
    ("34", r"\boxed{34\text{ million}}"),
    ("34", r"\boxed{34\text{ if }x>0, 35\text{ otherwise}}"),
    ("34", r"\boxed{34'}"),
    ("34", r"\boxed{\phantom{34}}"),
    ("1/2", r"\boxed{0.50000001}"),
    (r"\{1,2\}", r"\boxed{(1,2)}"),
    ("2:30", r"\boxed{2/30}"),
    ("32349", r"\boxed{32, 349}"),
    ("silent", r"\boxed{listen}"),
    ("34", r"\boxed{\text{not }34}"),
    ("34", r"\boxed{\ne 34}"),
    ("34", r"\boxed{3 4}"),
    ("5", r"\boxed{500}"),
    ("34", r"\boxed{34.003}"),
    ("34", r"\boxed{34.0000000000001}"),
    ("9007199254740993", r"\boxed{9007199254740992}"),
    ("34", r"\boxed{-34}"),
    ("34", r"\boxed{34!}"),
    ("34", r"\boxed{34i}"),
    ("34", r"\boxed{3.4e1}"),
    ("34", "so x_{34}"),
    ("2", r"The answer is \frac{1}{2}"),
    ("34", "The answer is 34. Wait, actually 12."),
    (r"2\sqrt{3}", r"\boxed{2}"),
    (r"(3, \frac{\pi}{2})", r"\boxed{3}"),
]

# Text that does not parse, in which a lenient grader goes looking for the gold.
MALFORMED = [
    ("34", r"\boxed{12 34?\sqrt\infty}"),
    ("34", r"<SOLUTION>35 34=\sqrt]</SOLUTION>"),
    ("34", r"\boxed{12\le 34e~}"),
    ("34", r"<SOLUTION>12} \boxed{34</SOLUTION>"),
    ("34", r"\boxed{34_3435}"),
    (r"\frac{1}{2}", r"\boxed{35\frac{1}{2}&(]}"),
    (r"\frac{1}{2}", r"\boxed{(\text{ and }35 \frac{1}{2}}"),
    (r"\frac{1}{2}", r"\boxed{\frac{1}{3}\text{ or }\frac{1}{2}}"),
    (r"\frac{1}{2}", r"\boxed{\pm\frac{1}{2}}"),
    (r"2\sqrt{3}", r"\boxed{\sqrt{3} \text{ or } 2\sqrt{3}}"),
]

CODE = [
    ("0", "Answer: __import__('os').system('true')"),
    ("1", r"\boxed{\text{exec}(open('/dev/zero').read())}"),
    (r"\frac{1}{2}", r"\boxed{().__class__.__bases__[0].__subclasses__()}"),
    (r"\frac{1}{2}", r"\boxed{\input{/etc/passwd}}"),
]

WRONG = [
    *POWERS,
    *COMBINATORICS,
    *LONG,
    *NESTING,
    *CHARACTERS,
    *SEVERAL,
    *TAGS,
    *MEANING,
    *MALFORMED,
    *CODE,
]


def hostile(count: int) -> list[str]:
    """`count` different answers that pass every filter of syntax and do not terminate."""
    return [
        rf"\boxed{{((((9^{{{990 + i}}})^{{999}})^{{999}})^{{999}})^{{999}}}}" for i in range(count)
    ]
