"""Reference, response, is it right? Written by us after what people report of maths graders; right and wrong in balance.

`B(x)` is a response that ends with x in a box. Cases are grouped by what they try.
"""


def B(answer: str) -> str:
    return f"We work it out. So the answer is $\\boxed{{{answer}}}$."


FRACTIONS = [
    (r"\frac{1}{2}", B(r"\dfrac{1}{2}"), True), (r"\frac{1}{2}", B(r"\tfrac12"), True), (r"\frac{1}{2}", B("1/2"), True),
    (r"\frac{1}{2}", B("0.5"), True), (r"\frac{1}{2}", B(".5"), True), (r"\frac43", B(r"\frac{4}{3}"), True), (r"\frac 59", B(r"\frac{5}{9}"), True),
    (r"-\frac{35}{9}", B(r"\frac{-35}{9}"), True), (r"-\frac{35}{9}", B(r"-35/9"), True), (r"\frac{14}{3}", B(r"\frac{28}{6}"), True),
    (r"\frac{1}{2}", B(r"\frac{2}{1}"), False), (r"\frac{1}{2}", B(r"-\frac{1}{2}"), False), (r"-\frac{35}{9}", B(r"\frac{35}{9}"), False),
    (r"\frac{1}{3}", B("0.33"), False), (r"\frac{1}{3}", B("0.3333"), False), (r"\frac{14}{3}", B(r"\frac{3}{14}"), False),
    (r"\frac43", B("43"), False), (r"\frac{270}7\text{ degrees}", B(r"\frac{270}{7}"), True),
]  # fmt: skip
DECIMALS = [
    ("1.25", B("1.250"), True), ("1.25", B(r"\frac{5}{4}"), True), (".0000672", B("0.0000672"), True), (".35625", B(r"\frac{57}{160}"), True),
    ("3", B("3.0"), True), ("3", B("3."), True), ("025", B("25"), True), ("-10", B("-10"), True), ("-10", B(r"\text{-}10"), True),
    ("1.25", B("12.5"), False), ("1.25", B("1.26"), False), ("3", B("3.1"), False), ("3", B("-3"), False), ("025", B("250"), False),
    ("0.15", B("0.51"), False), ("100", B("1000"), False),
]  # fmt: skip
PERCENT = [
    (r"8 \%", B(r"8\%"), True), (r"8 \%", B("8"), True), ("62.5%", B(r"62.5\%"), True), ("62.5%", B("62.5 percent"), True), ("0.15", B(r"15\%"), True),
    ("15", B(r"15\%"), True), (r"8 \%", B(r"80\%"), False), ("62.5%", B(r"6.25\%"), False), ("0.15", B(r"1.5\%"), False), ("15", B(r"150\%"), False),
    ("17.5%", B("0.175"), True), ("17.5%", B("1.75"), False),
]  # fmt: skip
UNITS = [
    (r"5.4 \text{ cents}", B("5.4"), True), (r"5.4 \text{ cents}", B(r"5.4\text{ cents}"), True), (r"15\mbox{ cm}^2", B("15"), True),
    (r"15\mbox{ cm}^2", B(r"15\,\text{cm}^2"), True), (r"864 \mbox{ inches}^2", B(r"864 \text{ square inches}"), True), ("27", B(r"27\text{ miles}"), True),
    ("27", B("27 miles"), True), (r"\$36", B("36"), True), (r"\$18.90", B(r"\$18.90"), True), ("18", B(r"\$18"), True), ("18", B("18 dollars"), True),
    ("3e8", B(r"3 \times 10^{8}\ \mathrm{m/s}"), True), (r"5.4 \text{ cents}", B(r"54\text{ cents}"), False), (r"15\mbox{ cm}^2", B("225"), False),
    ("27", B("72 miles"), False), (r"\$36", B(r"\$3.60"), False), ("18", B(r"\$1.80"), False), (r"864 \mbox{ inches}^2", B(r"72 \text{ inches}^2"), False),
    ("2", B("2 hours"), True), ("2", B("120 minutes"), False),
]  # fmt: skip
DEGREES = [
    (r"90^\circ", B("90"), True), (r"90^\circ", B(r"90^{\circ}"), True), (r"90^\circ", B("90°"), True), (r"90^\circ", B(r"90\text{ degrees}"), True),
    ("45", B(r"45^\circ"), True), (r"90^\circ", B("80"), False), (r"90^\circ", B(r"9^\circ"), False), (r"30^\circ", B(r"60^{\circ}"), False),
    (r"-\frac{\pi}{6}", B(r"-\pi/6"), True), (r"-\frac{\pi}{6}", B(r"\frac{\pi}{6}"), False),
]  # fmt: skip
THOUSANDS = [
    ("10,\\!080", B("10080"), True), ("10,\\!080", B("10,080"), True), ("11,\\! 111,\\! 111,\\! 100", B("11111111100"), True), ("58,500", B("58500"), True),
    ("58,500", B(r"58{,}500"), True), ("58,500", B(r"58\,500"), True), ("58,500", B("58 500"), True), (r"\$32,\!348", B(r"\$32,348"), True),
    ("1000000", B("1,000,000"), True), ("1234", B("1,234.00"), True), ("10,\\!080", B("1080"), False), ("58,500", B("58,050"), False),
    ("58,500", B("585,00"), False), ("1000000", B("1,000,00"), False), ("1000000", B("100,000"), False), (r"\$32,\!348", B("32.348"), False),
]  # fmt: skip
MIXED = [
    (r"1\frac{4}{5}", B(r"\frac{9}{5}"), True), (r"1\frac{4}{5}", B("1.8"), True), (r"1\frac{4}{5}", B("1 4/5"), True), (r"137 \frac{1}{2}", B("137.5"), True),
    (r"\frac{9}{5}", B(r"1\frac{4}{5}"), True), (r"-\frac{3}{2}", B(r"-1\frac{1}{2}"), True), (r"1\frac{4}{5}", B(r"\frac{4}{5}"), False),
    (r"1\frac{4}{5}", B("14/5"), False), (r"137 \frac{1}{2}", B("68.5"), False), (r"137 \frac{1}{2}", B("137"), False),
]  # fmt: skip
INTERVALS = [
    ("(3,4]", B("(3, 4]"), True), ("(3,4]", B(r"\left(3,4\right]"), True), ("(-\\infty, 0]", B(r"(-\infty,0]"), True), ("(5,\\infty)", B(r"(5,+\infty)"), True),
    (r"(0,9) \cup (9,36)", B(r"(9,36)\cup(0,9)"), True), (r"x \in [-2,7]", B("[-2,7]"), True), ("[-2,7]", B(r"x\in[-2,7]"), True),
    (r"\left[ \frac{\pi^2}{8}, \frac{5 \pi^2}{4} \right]", B(r"[\pi^2/8, 5\pi^2/4]"), True), ("(3,4]", B("(3,4)"), False), ("(3,4]", B("[3,4]"), False),
    ("(-\\infty, 0]", B(r"(-\infty,0)"), False), ("(5,\\infty)", B(r"[5,\infty)"), False), (r"(0,9) \cup (9,36)", B("(0,36)"), False),
    (r"(0,9) \cup (9,36)", B(r"(0,9]\cup(9,36)"), False), ("[-2,7]", B(r"-2 \le x \le 7"), True), ("[-2,7]", B(r"-2 < x < 7"), False),
    (r"(2,\infty)", B("x > 2"), True), (r"(2,\infty)", B(r"x \ge 2"), False),
]  # fmt: skip
SETS = [
    ("1,-2", B("-2, 1"), True), ("1,-2", B("1 and -2"), True), ("1,-2", B("x=1, x=-2"), True), ("1,-2", B(r"x = 1 \text{ or } x = -2"), True),
    ("3, 5, 7", B("7,5,3"), True), ("3, 5, 7", B(r"\{3, 5, 7\}"), True), (r"\{1\pm\sqrt{5},-2\}", B(r"-2, 1+\sqrt{5}, 1-\sqrt{5}"), True),
    ("$\\frac{1}{3},1,\\frac{1}{9}$", B(r"1, \frac13, \frac19"), True), ("1,-2", B("1"), False), ("1,-2", B("1, 2"), False), ("3, 5, 7", B("3,5"), False),
    ("3, 5, 7", B("3,5,7,9"), False), ("3, 5, 7", B("3,3,5,7"), True), (r"\{1\pm\sqrt{5},-2\}", B(r"1\pm\sqrt{5}"), False), ("2500,7500", B("7500, 2500"), True),
    ("2500,7500", B("25007500"), False), ("1", B("1, -2"), False),
]  # fmt: skip
TUPLES = [
    ("(6,31,-1)", B("(6, 31, -1)"), True), ("(6,31,-1)", B("6, 31, -1"), True), (r"\left( 3, \frac{\pi}{2} \right)", B(r"(3,\pi/2)"), True),
    (r"\left( \frac{3}{2}, -13 \right)", B("(1.5, -13)"), True), ("$(1,8,19), (2,7,13), (4,5,7)$", B("(4,5,7), (1,8,19), (2,7,13)"), True),
    ("(-7,-1)", B("(x,y)=(-7,-1)"), True), ("(6,31,-1)", B("(31,6,-1)"), False), ("(6,31,-1)", B("(6,31)"), False), ("(6,31,-1)", B("(6,31,1)"), False),
    ("$(1,8,19), (2,7,13), (4,5,7)$", B("(1,8,19), (2,7,13)"), False), ("$(1,8,19), (2,7,13), (4,5,7)$", B("(8,1,19), (2,7,13), (4,5,7)"), False),
    ("(-7,-1)", B("(-1,-7)"), False),
]  # fmt: skip
MATRICES = [
    (r"\begin{pmatrix} -2 \\ -14 \\ -7 \end{pmatrix}", B(r"\begin{pmatrix}-2\\-14\\-7\end{pmatrix}"), True),
    (r"\begin{pmatrix} -2 \\ -14 \\ -7 \end{pmatrix}", B(r"\begin{bmatrix} -2 \\ -14 \\ -7 \end{bmatrix}"), True),
    (r"\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}", B(r"\begin{pmatrix} \frac{1}{5} \\ -\frac{18}{5} \end{pmatrix}"), True),
    (r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}", B(r"\left(\begin{array}{cc} -1 & 0 \\ 0 & -1 \end{array}\right)"), True),
    (r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}", B(r"\begin{pmatrix} 1 & 0 \\ 0 & -1 \end{pmatrix}"), False),
    (r"\begin{pmatrix} -2 \\ -14 \\ -7 \end{pmatrix}", B(r"\begin{pmatrix} -14 \\ -2 \\ -7 \end{pmatrix}"), False),
    (r"\begin{pmatrix} -2 \\ -14 \\ -7 \end{pmatrix}", B(r"\begin{pmatrix} -2 & -14 & -7 \end{pmatrix}"), False),
    (r"\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}", B(r"\begin{pmatrix} 1/5 \\ 18/5 \end{pmatrix}"), False),
]  # fmt: skip
ASSIGNED = [
    ("x=5", B("5"), True), ("5", B("x=5"), True), ("x=5", B("x = 5"), True), ("y = 2x + 3", B("y=2x+3"), True), ("y = 2x + 3", B("2x+3"), True),
    ("y = -2x", B("y=-2x"), True), ("$f(x)=2 x$", B("f(x)=2x"), True), ("$f(x)=2 x$", B("2x"), True), ("x=5", B("x=-5"), False), ("5", B("x=6"), False),
    ("y = 2x + 3", B("y=3x+2"), False), ("$f(x)=2 x$", B("f(x)=x+2"), False), ("5x - 7y + 11z + 4 = 0", B("5x-7y+11z+4=0"), True),
    ("5x - 7y + 11z + 4 = 0", B("-5x+7y-11z-4=0"), True), ("5x - 7y + 11z + 4 = 0", B("5x-7y+11z-4=0"), False), ("$m_{\\max }=n^{2}-n-1$", B("n^2-n-1"), True),
    ("$m_{\\max }=n^{2}-n-1$", B("n^2-n+1"), False), ("$\\angle B E A_{1}=90$,$\\angle A E B_{1}=90$", B(r"90^\circ, 90^\circ"), True),
]  # fmt: skip
EXPRESSIONS = [
    (r"3\sqrt{13}", B(r"3 \sqrt{13}"), True), (r"11\sqrt2", B(r"11\sqrt{2}"), True), (r"3\sqrt{13}", B(r"\sqrt{117}"), True), ("p - q", B("-q+p"), True),
    ("6 - 5i", B("6-5i"), True), ("2k+2", B("2(k+1)"), True), ("(a+5)(b+2)", B("(b+2)(a+5)"), True), (r"\frac{11+9a}{20}", B(r"\frac{9a+11}{20}"), True),
    (r"\cot x", B(r"\frac{\cos x}{\sin x}"), True), (r"18+2\pi", B(r"2\pi+18"), True), (r"\frac{\sqrt{3}}{3}", B(r"\frac{1}{\sqrt{3}}"), True),
    ("x^3+3x-6", B("x^3 + 3x - 6"), True), (r"2021 \cdot 505 \cdot 337", B("343943885"), True), (r"\frac{a b}{2}", B(r"\frac{1}{2}ab"), True),
    (r"3\sqrt{13}", B(r"13\sqrt{3}"), False), ("p - q", B("q-p"), False), ("6 - 5i", B("6+5i"), False), ("2k+2", B("2k+1"), False),
    (r"\cot x", B(r"\tan x"), False), (r"18+2\pi", B(r"18+\pi"), False), (r"18+2\pi", B("24.28"), False), (r"\frac{\sqrt{3}}{3}", B(r"\sqrt{3}"), False),
    (r"\frac{20000}{\pi}", B("6366"), False), (r"3R^2", B("3R"), False), (r"12\pi", B("12"), False), (r"\frac{100!}{2^{50}}", B(r"\frac{100!}{2^{50}}"), True),
    (r"x^8 + x^7 + 1", B("x^8+x^7+1"), True), ("x^3+3x-6", B("x^3+3x+6"), False),
]  # fmt: skip
PLUS_MINUS = [
    (r"1 \pm \sqrt{19}", B(r"1\pm\sqrt{19}"), True), (r"1 \pm \sqrt{19}", B(r"1+\sqrt{19}, 1-\sqrt{19}"), True), (r"3 \pm 2 \sqrt{2}", B(r"3-2\sqrt2, 3+2\sqrt2"), True),
    (r"1 \pm \sqrt{19}", B(r"1+\sqrt{19}"), False), (r"1 \pm \sqrt{19}", B(r"-1\pm\sqrt{19}"), False), ("2,-2", B(r"\pm 2"), True), ("2", B(r"\pm 2"), False),
]  # fmt: skip
TEXTS = [
    (r"\text{Evelyn}", B("Evelyn"), True), (r"\text{Evelyn}", B(r"\text{evelyn}"), True), (r"\text{east}", B(r"\textbf{East}"), True), (r"\text{even}", B("even"), True),
    (r"\text{ellipse}", B(r"\mathrm{ellipse}"), True), (r"\text{Evelyn}", B("Briana"), False), (r"\text{east}", B("west"), False), (r"\text{even}", B("odd"), False),
    (r"\text{even}", B("neither even nor odd"), False), (r"\text{ellipse}", B("parabola"), False),
]  # fmt: skip
CHOICES = [
    (r"\text{(C)}", B("C"), True), (r"\text{(C)}", B("(C)"), True), (r"\text{(C)}", B(r"\text{C}"), True), (r"\text{(E)}", B(r"\textbf{(E)}\ 12"), True),
    ("B", B("B"), True), ("B", B(r"\text{(B) } 12"), True), (r"\text{(C)}", B("D"), False), (r"\text{(E)}", B("B"), False), ("B", B("A"), False),
    ("B", "The answer is (B).", True), ("B", "The answer is (A), not (B).", False), ("B", B("A and B"), False),
]  # fmt: skip
BASES = [
    ("52_8", B("52_8"), True), ("52_8", B("52_{8}"), True), ("4210_{5}", B("4210"), True), ("52_8", B("25_8"), False), ("52_8", B("52_9"), False), ("2516_8", B("2561"), False),
]  # fmt: skip
SCIENCE = [
    ("4.5e33", B(r"4.5 \times 10^{33}"), True), ("1e-5", B(r"10^{-5}"), True), ("1e-3", B("0.001"), True), ("6e13", B(r"6\cdot10^{13}"), True), ("3.83e35", B("3.83e35"), True),
    ("2.7778e-6", B(r"2.7778\times10^{-6}"), True), ("-1./3", B(r"-\frac{1}{3}"), True), ("-3./2", B("-1.5"), True), ("+2", B("2"), True),
    ("4.5e33", B(r"4.5 \times 10^{32}"), False), ("1e-5", B(r"10^{5}"), False), ("1e-3", B("0.01"), False), ("6e13", B("6"), False), ("-1./3", B(r"\frac13"), False),
]  # fmt: skip
WHERE = [
    ("5", r"First $\boxed{3}$ looked right, but it is $\boxed{5}$.", True), ("3", r"First $\boxed{3}$ looked right, but it is $\boxed{5}$.", False),
    ("1,-2", r"The roots are $\boxed{1}$ and $\boxed{-2}$.", True), ("1,-2", r"The roots are $\boxed{1}$ and $\boxed{2}$.", False),
    (r"\frac{1}{2}", r"$\boxed{\frac{1}{\frac{4}{2}}}$", True), ("5", r"\boxed 5", True), ("5", r"\fbox{5}", True), ("72", "She sold 48+24=72 clips.", True),
    ("72", "#### 72", True), ("1234", "So we have\n#### 1,234", True), ("72", "The final answer is 72. I hope it is correct.", True), ("72", "**Answer:** 72", True),
    ("72", "Answer: 48", False), ("137", "65 + 72 =", False), ("72", "It is 72 at first, 48 in the end.", False), ("72", "I do not know.", False),
    ("72", "", False), ("5", r"So $\boxed{", False), ("5", r"The answer is $\boxed{}$, that is 5.", False), ("137", B("65+72"), False), ("1024", B("2^{10}"), True),
    ("12", B(r"3 \cdot 4"), False), ("12", B(r"3 \cdot 4 = 12"), True), ("12", "Then 3 + 4 + 5 = 12. The answer is 12 apples.", True), ("-5", "The answer is -5.", True),
    ("5", "The answer is -5.", False), ("0.5", "the answer is 1/2", True), ("5", "<think>\\boxed{7}</think> It is \\boxed{5}", True), ("7", "<think>\\boxed{7}</think> It is \\boxed{5}", False),
]  # fmt: skip

GROUPS = {name.lower(): value for name, value in list(globals().items()) if name.isupper() and isinstance(value, list)}
