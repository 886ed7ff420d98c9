r"""A short text against one or more right ones: a name, a term, a formula.

Two texts are the same when they have the same letters, digits and signs in the same order, whatever the case, punctuation, hyphens,
articles, fonts and LaTeX around them: `The Krebs cycle.` is `krebs-cycle`, `\mathrm{H_2O}` is `H₂O`, `α-helix` is `alpha helix`. Chemical
formulas keep their case: `Co` is not `CO`. Nothing is looked for inside a longer answer, so one that lists several names is none of them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from workers.graders.verdict import Verdict

MAX_CHARS = 2_000
_UPRIGHT = re.compile(r"\\(?:text|mathrm|mathbf|mathit|mathsf|textrm|textit|textbf|operatorname|ce|emph|mbox)\s*(?=\{)")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_LOWERED = re.compile(r"[_^{}$]")
_LEAD = re.compile(r"^(?:(?:so|thus|therefore|hence)\s+)?(?:the\s+)?(?:(?:final|correct)\s+)?answer\s+is\s+|^(?:it\s+is|they\s+are)\s+")
_ARTICLES = frozenset(("the", "a", "an"))
_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta", "η": "eta", "θ": "theta", "κ": "kappa",
    "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi", "χ": "chi", "ψ": "psi",
    "ω": "omega", "Δ": "Delta", "Σ": "Sigma", "Ω": "Omega", "Λ": "Lambda", "Φ": "Phi", "Ψ": "Psi", "Γ": "Gamma", "Π": "Pi", "Θ": "Theta",
}  # fmt: skip
_SYMBOLS = (
    "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd "
    "In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np "
    "Pu Am Cm Bk Cf Es Fm Md No Lr Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts Og"
)
_ELEMENTS = frozenset(_SYMBOLS.split())
_ATOMS = re.compile(r"([A-Z][a-z]?)|[\d()+\-]")
_APART = re.compile(r"(?:[\s.,;:!?\"'`´’‘“”~\[\]()]|(?<=\w)-|-(?!\d))+")


def compare_texts(right: Iterable[str], answer: str) -> Verdict:
    """The verdict on an answer: right when it is one of the texts."""
    said = normal(answer) if len(answer) <= MAX_CHARS else ""
    if not said:
        return Verdict("unreadable", "no_text")
    for text in right:
        if normal(text) == said and not _other_formula(text, answer):
            return Verdict("right", "same_text")
    return Verdict("wrong", "other_text")


def normal(text: str) -> str:
    """What of a text is compared."""
    words = _APART.sub(" ", _opened(text)).casefold().strip()
    return " ".join(word for word in _LEAD.sub("", words).split() if word not in _ARTICLES) or words


def _opened(text: str) -> str:
    r"""The text without its LaTeX: `\alpha` and `α` become `alpha`, raised and lowered digits plain ones."""
    text = _UPRIGHT.sub(" ", text.replace(r"\,", " ").replace(r"\ ", " "))
    text = unicodedata.normalize("NFKC", text).replace("−", "-")
    text = "".join(_GREEK.get(sign, sign) for sign in text)
    return _LOWERED.sub("", _COMMAND.sub(r" \1 ", text))


def is_chemical(text: str) -> bool:
    """Whether a text is a chemical formula: symbols of elements, numbers, charges."""
    return _is_formula(_atoms_of(text))


def _other_formula(one: str, other: str) -> bool:
    """Whether both are chemical formulas, and not of the same atoms: case tells elements apart."""
    return is_chemical(one) and is_chemical(other) and _atoms_of(one) != _atoms_of(other)


def _atoms_of(text: str) -> str:
    return re.sub(r"\s", "", _opened(text)).rstrip(".")


def _is_formula(text: str) -> bool:
    place = 0
    while place < len(text):
        atom = _ATOMS.match(text, place)
        if atom is None or (atom[1] is not None and atom[1] not in _ELEMENTS):
            return False
        place = atom.end()
    return bool(text)
