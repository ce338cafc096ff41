#!/usr/bin/env python3
"""Derives every polynomial coefficient of framework/core/math.h.

Each entry of FITS states the function, the interval, the error weight and the number of terms. The
coefficients are minimax (Remez exchange on a dense Chebyshev grid, 60 digits), then rounded one by
one from the lowest power up: each candidate neighbour in the target format is tried, the remaining
coefficients are fitted again around it, and the better one is kept. So the printed error is that of
the rounded coefficients, not of the ideal ones.

    python3 tools/fit_math.py                                  print all tables
    python3 tools/fit_math.py exp tanh                         print some
    python3 tools/fit_math.py --check framework/core/math.h    fail if the header holds others

Needs mpmath (pip install mpmath).
"""
import argparse
import dataclasses
import struct
import sys
from typing import Callable

from mpmath import mp, mpf

mp.dps = 60
GRID_POINTS = 1200


# ---- rounding to the target format --------------------------------------------------------------


def to_format(value, is_double):
    """The nearest float or double, as an exact mpf."""
    if is_double:
        return mpf(float(value))
    return mpf(struct.unpack("f", struct.pack("f", float(value)))[0])


def neighbours(value, is_double):
    """The two values of the format around `value`."""
    code, bits = ("d", "q") if is_double else ("f", "i")
    nearest = to_format(value, is_double)
    if nearest == value:
        return [nearest]
    raw = struct.unpack(bits, struct.pack(code, float(nearest)))[0]
    away = abs(nearest) < abs(value)
    other = struct.unpack(code, struct.pack(bits, raw + (1 if away else -1)))[0]
    return [nearest, mpf(other)]


def literal(value, is_double):
    """The shortest C++ literal that reads back as exactly this value."""
    if is_double:
        return repr(float(value))
    for digits in range(1, 10):
        text = f"{float(value):.{digits}g}"
        if to_format(mpf(text), False) == value:
            break
    if "." not in text and "e" not in text:
        text += ".0"
    return text + "f"


# ---- minimax -----------------------------------------------------------------------------------


class Grid:
    """g and w on Chebyshev points of [low, high], computed once."""

    def __init__(self, g, w, low, high):
        low, high = mpf(low), mpf(high)
        n = GRID_POINTS
        self.x = []
        for i in range(n + 1):
            x = (low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * i / n)
            # The functions are written with removable singularities at 0: stay off it.
            self.x.append(x if abs(x) > mpf(10) ** -14 else mpf(10) ** -14)
        self.g = [g(x) for x in self.x]
        self.w = [w(x) for x in self.x]


def polynomial(coefficients, x):
    y = mpf(0)
    for c in reversed(coefficients):
        y = y * x + c
    return y


def errors(grid, coefficients):
    return [w * (polynomial(coefficients, x) - g) for x, g, w in zip(grid.x, grid.g, grid.w)]


def exchange(error, count):
    """`count` grid indices at which the error alternates in sign and is locally largest."""
    runs = []
    for i, e in enumerate(error):
        if e == 0:
            continue
        if runs and (error[runs[-1]] > 0) == (e > 0):
            if abs(e) > abs(error[runs[-1]]):
                runs[-1] = i
        else:
            runs.append(i)
    while len(runs) > count:
        # Dropping an end keeps the alternation; inside, a neighbouring pair has to go.
        if len(runs) == count + 1:
            runs.pop(0 if abs(error[runs[0]]) < abs(error[runs[-1]]) else -1)
        else:
            k = min(range(len(runs) - 1),
                    key=lambda j: max(abs(error[runs[j]]), abs(error[runs[j + 1]])))
            del runs[k:k + 2]
    return runs


def remez(grid, terms, fixed=()):
    """Minimax coefficients of `terms` powers; the first len(fixed) are given. Returns (c, error)."""
    free = terms - len(fixed)
    if free == 0:
        return list(fixed), max(map(abs, errors(grid, list(fixed))))
    target = [g - polynomial(list(fixed), x) if fixed else g for x, g in zip(grid.x, grid.g)]
    # The error alternates where weight times the lowest free power is positive; elsewhere mirrored.
    sign = [1 if w * x ** len(fixed) > 0 else -1 for x, w in zip(grid.x, grid.w)]
    n = len(grid.x) - 1
    points = [round(n * (i + mpf(1) / 2) / (free + 1)) for i in range(free + 1)]
    best = None
    for _ in range(30):
        a, b = mp.matrix(free + 1, free + 1), mp.matrix(free + 1, 1)
        for row, i in enumerate(points):
            for k in range(free):
                a[row, k] = sign[i] * grid.w[i] * grid.x[i] ** (k + len(fixed))
            a[row, free] = mpf(-1) ** row
            b[row] = sign[i] * grid.w[i] * target[i]
        solution = mp.lu_solve(a, b)
        c = list(fixed) + [solution[k] for k in range(free)]
        level = abs(solution[free])
        error = errors(grid, c)
        largest = max(map(abs, error))
        if best is None or largest < best[1]:
            best = (c, largest)
        if largest <= level * mpf("1.002"):
            break
        nxt = exchange([s * e for s, e in zip(sign, error)], free + 1)
        if len(nxt) < free + 1 or nxt == points:
            break
        points = nxt
    return best


def fit_rounded(grid, terms, is_double, fixed):
    chosen = list(fixed)
    while len(chosen) < terms:
        c, _ = remez(grid, terms, chosen)
        k = len(chosen)
        options = [(remez(grid, terms, chosen + [v])[1], v) for v in neighbours(c[k], is_double)]
        chosen.append(min(options, key=lambda option: option[0])[1])
    return chosen, max(map(abs, errors(grid, chosen)))


# ---- what is fitted ----------------------------------------------------------------------------


@dataclasses.dataclass
class Fit:
    formula: str
    g: Callable  # what the polynomial stands for
    w: Callable  # error of the function's result per unit of error of the polynomial
    low: object
    high: object
    terms: int
    is_double: bool = False
    fixed: tuple = ()


def root(t):
    return mp.sqrt(t)


LN2 = mp.log(2)
HALF_LN2 = LN2 / 2 * mpf("1.001")
MILLS_SHIFT = mpf("3.125")


def mills(x):
    """exp(x^2 / 2) P(X < -x) for a standard normal X."""
    return mp.exp(x * x / 2) * mp.erfc(x / mp.sqrt(2)) / 2


def of_mills_variable(t):
    return 1 / t - MILLS_SHIFT


FITS = {
    "exp": Fit(
        "exp(r) = 1 + r + r^2 p(r)",
        g=lambda r: (mp.expm1(r) - r) / r**2, w=lambda r: r**2 / mp.exp(r),
        low=-HALF_LN2, high=HALF_LN2, terms=5),
    "expm1": Fit(
        "expm1(r) = r + r^2 p(r)",
        g=lambda r: (mp.expm1(r) - r) / r**2, w=lambda r: r**2 / mp.expm1(r),
        low=-LN2 * mpf("0.7505"), high=LN2 * mpf("0.7505"), terms=6),
    "log": Fit(
        "log(1 + f) = f - f^2 / 2 + f^3 p(f)",
        g=lambda f: (mp.log1p(f) - f + f**2 / 2) / f**3, w=lambda f: f**3 / mp.log1p(f),
        low=-mpf(1) / 3, high=mpf(1) / 3, terms=8),
    "tanh": Fit(
        "tanh(x) = x + x^3 p(x^2)",
        g=lambda t: (mp.tanh(root(t)) / root(t) - 1) / t, w=lambda t: t * root(t) / mp.tanh(root(t)),
        low=0, high=mpf("0.55") ** 2, terms=5),
    "tanh_double": Fit(
        "tanh(x) = x + x^3 p(x^2)",
        g=lambda t: (mp.tanh(root(t)) / root(t) - 1) / t, w=lambda t: t * root(t) / mp.tanh(root(t)),
        low=0, high=mpf("0.55") ** 2, terms=11, is_double=True),
    "erf_small": Fit(
        "erf(x) = x + x p(x^2)",
        g=lambda t: mp.erf(root(t)) / root(t) - 1, w=lambda t: root(t) / mp.erf(root(t)),
        low=0, high=mpf("0.9") ** 2, terms=6),
    "erf_large": Fit(
        "erf(x) = 1 - exp(p(x))",
        g=lambda x: mp.log(mp.erfc(x)), w=lambda x: mp.erfc(x) / mp.erf(x),
        low=mpf("0.9"), high=mpf("3.95"), terms=7),
    "normal_near": Fit(
        "P(X < x) = 1/2 + x p(x^2)",
        g=lambda t: (mp.ncdf(root(t)) - mpf("0.5")) / root(t), w=lambda t: root(t) / mp.ncdf(-root(t)),
        low=0, high=1, terms=5),
    "mills": Fit(
        f"exp(x^2/2) P(X < -x) = t p(t), t = 1 / (x + {float(MILLS_SHIFT)}), x from 1 to 14.5",
        g=lambda t: mills(of_mills_variable(t)) / t, w=lambda t: t / mills(of_mills_variable(t)),
        low=1 / (MILLS_SHIFT + mpf("14.5")), high=1 / (MILLS_SHIFT + 1), terms=8),
    "pow_log2": Fit(
        "log2(m) = s p(s^2), s = (m - 1) / (m + 1)",
        g=lambda t: 2 * mp.atanh(root(t)) / root(t) / LN2, w=lambda t: root(t) * LN2 / 2 / mp.atanh(root(t)),
        low=0, high=((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2 * mpf("1.0001"), terms=5, is_double=True),
    "pow_exp2": Fit(
        "2^r = 1 + r p(r)",
        g=lambda r: (mpf(2) ** r - 1) / r, w=lambda r: r / mpf(2) ** r,
        low=-mpf("0.5001"), high=mpf("0.5001"), terms=8, is_double=True),
}


def split(value, bits):
    """(high, low): high keeps `bits` significant bits, so that small integers times it are exact."""
    exponent = mp.floor(mp.log(value, 2)) + 1
    unit = mpf(2) ** (exponent - bits)
    high = mp.nint(value / unit) * unit
    return high, to_format(value - high, False)


def constants():
    high, low = split(LN2, 15)
    return {
        "log2(e)": literal(to_format(1 / LN2, False), False),
        "ln(2), upper 15 bits": literal(to_format(high, False), False),
        "ln(2), rest": literal(low, False),
        "sqrt(8 / pi)": literal(mp.sqrt(8 / mp.pi), True),
        "0.044715 sqrt(8 / pi)": literal(mpf("0.044715") * mp.sqrt(8 / mp.pi), True),
        "3 * 0.044715 sqrt(8 / pi)": literal(mpf("0.134145") * mp.sqrt(8 / mp.pi), True),
        "1 / sqrt(2 pi)": literal(1 / mp.sqrt(2 * mp.pi), True),
        "1 / sqrt(2)": literal(1 / mp.sqrt(2), True),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="fits to print; all when none is named")
    parser.add_argument("--check", metavar="HEADER", help="fail if a coefficient is not in HEADER")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in FITS]
    if unknown:
        parser.error(f"no fit named {', '.join(unknown)}; there are {', '.join(FITS)}")
    header = None
    if options.check:
        with open(options.check, encoding="utf-8") as file:
            header = file.read()
    missing = []
    for name in options.names or FITS:
        fit = FITS[name]
        grid = Grid(fit.g, fit.w, fit.low, fit.high)
        _, ideal = remez(grid, fit.terms, list(fit.fixed))
        coefficients, error = fit_rounded(grid, fit.terms, fit.is_double, fit.fixed)
        literals = [literal(c, fit.is_double) for c in coefficients]
        print(f"// {name}: {fit.formula}, on [{mp.nstr(mpf(fit.low), 6)}, {mp.nstr(mpf(fit.high), 6)}]"
              f", relative error 2^{mp.nstr(mp.log(error, 2), 4)}"
              f" (2^{mp.nstr(mp.log(ideal, 2), 4)} before rounding)")
        print("  " + ", ".join(literals))
        if header is not None:
            missing += [f"{name}: {text}" for text in literals if text not in header]
    if not options.names:
        for name, text in constants().items():
            print(f"// {name}\n  {text}")
            if header is not None and text not in header:
                missing.append(f"{name}: {text}")
    for line in missing:
        print(f"not in {options.check}: {line}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
