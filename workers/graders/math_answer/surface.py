r"""The first layer of reading an answer: one spelling for what looks the same on paper.

Works on text alone and knows no mathematics: Unicode signs become LaTeX commands, spacing and sizing commands go, math delimiters
and the full stop at the end go, the many spellings of a thousands separator become a comma. Every pattern is linear in the length
of the text.
"""

from __future__ import annotations

import re
import unicodedata

_SIGNS = {
    "−": "-", "–": "-", "—": "-", "﹣": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "∗": "*", "÷": r"\div ",
    "±": r"\pm ", "∓": r"\mp ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "≡": r"\equiv ",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∖": r"\setminus ", "∅": r"\emptyset ", "∞": r"\infty ", "√": r"\sqrt ", "∛": r"\sqrt[3]",
    "π": r"\pi ", "°": r"^\circ ", "º": r"^\circ ", "′": "'", "’": "'", "‘": "'", "“": '"', "”": '"', "⟨": r"\langle ", "⟩": r"\rangle ",
    "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}",
    "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}", "⇒": r"\Rightarrow ", "→": r"\to ", "∨": r"\lor ", "∧": r"\land ", "⁄": "/", "∕": "/",
    "ℯ": "e", "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
    "⅕": r"\frac{1}{5}", "⅖": r"\frac{2}{5}", "⅗": r"\frac{3}{5}", "⅘": r"\frac{4}{5}", "⅙": r"\frac{1}{6}", "⅚": r"\frac{5}{6}",
    "⅛": r"\frac{1}{8}", "⅜": r"\frac{3}{8}", "⅝": r"\frac{5}{8}", "⅞": r"\frac{7}{8}", "\u00a0": " ", "\u2009": " ", "\u202f": " ",
    "\u200b": "", "\ufeff": "", "\u2061": "", "\u2062": "*", "€": r"\euro ", "£": r"\pounds ", "¥": r"\yen ",
}  # fmt: skip
_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta", "η": "eta", "θ": "theta", "ι": "iota",
    "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "ρ": "rho", "σ": "sigma", "τ": "tau", "υ": "upsilon", "φ": "phi",
    "χ": "chi", "ψ": "psi", "ω": "omega", "Γ": "Gamma", "Δ": "Delta", "Θ": "Theta", "Λ": "Lambda", "Ξ": "Xi", "Π": "Pi", "Σ": "Sigma",
    "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega",
}  # fmt: skip
_TABLE = str.maketrans(_SIGNS | {letter: f"\\{name} " for letter, name in _GREEK.items()})
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ"
_LOWERED = "₀₁₂₃₄₅₆₇₈₉₊₋ₙ"
_RAISED_RUN = re.compile(f"[{_RAISED}]+")
_LOWERED_RUN = re.compile(f"[{_LOWERED}]+")
_RAISED_TABLE = str.maketrans(_RAISED, "0123456789+-ni")
_LOWERED_TABLE = str.maketrans(_LOWERED, "0123456789+-n")

_RENAMED = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom", "leq": "le", "leqslant": "le", "geq": "ge",
    "geqslant": "ge", "neq": "ne", "lt": "<", "gt": ">", "lbrace": r"\{", "rbrace": r"\}", "lbrack": "[", "rbrack": "]",
    "varnothing": "emptyset", "smallsetminus": "setminus", "backslash": "setminus", "implies": "Rightarrow",
    "Longrightarrow": "Rightarrow", "rightarrow": "to", "longrightarrow": "to", "vee": "lor", "wedge": "land", "degree": r"^\circ",
    "simeq": "approx", "cong": "approx", "ast": "*", "vert": "|", "lvert": "|", "rvert": "|", "mid": "|", "Vert": r"\|", "lVert": r"\|",
    "rVert": r"\|", "colon": ":", "varepsilon": "epsilon", "vartheta": "theta", "varphi": "phi", "prime": "'", "fbox": "", "boxed": "",
    "ldotp": ".", "dots": "ldots", "cdots": "ldots", "dotsc": "ldots", "rm": "", "bf": "", "it": "", "textstyle": "", "displaystyle": "",
    "scriptstyle": "", "limits": "", "nolimits": "", "left": "", "right": "", "middle": "", "big": "", "Big": "", "bigg": "", "Bigg": "",
    "bigl": "", "bigr": "", "Bigl": "", "Bigr": "", "biggl": "", "biggr": "", "Biggl": "", "Biggr": "", "quad": " ", "qquad": " ",
    "enspace": " ", "thinspace": " ", "negthinspace": "", "hfill": " ", "newline": " ",
    "underline": "", "therefore": "", "nonumber": "", "notag": "",
    "par": " ",
}  # fmt: skip
_COMMAND = re.compile(r"(?:\\left|\\right)\s*\.|\\\\|\\([A-Za-z]+)\s*|\\([,;:! >~])|~")
_ROW_END = "\\\\"
_DELIMITED = ((r"\[", r"\]"), (r"\(", r"\)"), ("$$", "$$"), ("$", "$"))
_COLOURED = re.compile(r"\\(?:text)?color\s*\{[^{}]*\}")
_ORDINAL = re.compile(r"\^\s*\{?\s*\\(?:text|mathrm)\s*\{\s*(?:st|nd|rd|th)\s*\}\s*\}?")
_BRACED_COMMA = re.compile(r"\{,\}")
_COMMA_THIN = re.compile(r"(?<=\d),\x01+(?=\d)")
_SPACES = re.compile(r"\s+")
_CURRENCY_DOLLAR = re.compile(r"\\\$")
_LONELY_DOLLAR = re.compile(r"^\$(?=\s*-?[\d.])")
_TINY_SPACE = "\x01"


def surface(raw: str) -> str:
    r"""The answer in one spelling, without delimiters, sizing and spacing commands.

    `\$5` and a lone `$5` come out as `\dollars 5`; a thin space inside a number as a blank, which the tokenizer reads as a separator.
    """
    text = _RAISED_RUN.sub(lambda run: "^{" + run.group().translate(_RAISED_TABLE) + "}", raw)
    text = _LOWERED_RUN.sub(lambda run: "_{" + run.group().translate(_LOWERED_TABLE) + "}", text)
    text = unicodedata.normalize("NFKC", text.translate(_TABLE)).translate(_TABLE)
    text = _ORDINAL.sub("", _COLOURED.sub("", text))
    text = _CURRENCY_DOLLAR.sub(r"\\dollars ", text)
    text = _undelimited(_SPACES.sub(" ", text).strip())
    text = _LONELY_DOLLAR.sub(r"\\dollars ", text).replace("$", "")
    text = _BRACED_COMMA.sub(",", _COMMAND.sub(_one_command, text))
    text = _COMMA_THIN.sub(",", text).replace(_TINY_SPACE, "")
    return _unended(_SPACES.sub(" ", text).strip())


def _one_command(match: re.Match[str]) -> str:
    name = match.group(1)
    if name is None:
        if match.group() == _ROW_END:
            return _ROW_END
        return "" if match.group().endswith(".") else _TINY_SPACE if match.group(2) == "!" else " "
    replacement = _RENAMED.get(name)
    if replacement is None:
        return f"\\{name} " if match.group().endswith((" ", "\t")) else f"\\{name}"
    return f"\\{replacement} " if replacement[:1].isalpha() else replacement


def _undelimited(text: str) -> str:
    """`text` without a pair of math delimiters around all of it."""
    for _ in range(4):
        for opening, closing in _DELIMITED:
            inner = text[len(opening) : len(text) - len(closing)]
            whole = text.startswith(opening) and text.endswith(closing) and len(text) > len(opening) + len(closing)
            if whole and opening not in inner and closing not in inner:
                text = inner.strip()
                break
        else:
            return text
    return text


def _unended(text: str) -> str:
    """`text` without the sentence's own full stop, comma or semicolon at the end."""
    while text and (text[-1] in ".,;" or text.endswith(_ROW_END)) and not text.endswith(("\\,", "\\;")):
        text = text[:-1].removesuffix("\\").rstrip()
    return text
