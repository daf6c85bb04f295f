# tools/bench/peers_page.py — what cpu_peers measured: floors, a page with a table of ratios, and a picture of bars
import argparse
from html import escape

# What attune is compared with: peers' rates, and what its cores can do at most.
AGAINST = {"sdpa": "SDPA", "dense": "SDPA, dense mask", "flex": "FlexAttention", "peak": "peak"}
NAMES = {"attune": "attune", **AGAINST}
# As tools/picture.cpp: dark, light, middle, and so apart in grey too.
COLOURS = {"attune": "#2c5f8d", "sdpa": "#e79b4b", "dense": "#fbe9d2", "flex": "#9a9a9a"}


def rate(gflops):
    return f"{gflops:.0f}" if gflops >= 100 else f"{gflops:.1f}"


def ratios(case):
    """attune's median rate over each other's, and over the peak of as many threads."""
    measured = case["measured"]
    if "attune" not in measured:
        return {}
    mine = measured["attune"]["gflops"]["median"]
    out = {name: mine / one["gflops"]["median"] for name, one in measured.items() if name != "attune"}
    return {**out, "peak": mine / measured["attune"]["peak_gflops"]}


def words(case):
    return {case["row"], case["direction"], case["dtype"], f"d{case['d']}", f"t{case['threads']}"}


def floor(text):
    """f32:causal:sdpa=1.0 as ({"f32", "causal"}, "sdpa", 1.0)"""
    *which, against = text.partition("=")[0].split(":")
    try:
        least = float(text.partition("=")[2])
    except ValueError:
        least = 0.0
    if against not in AGAINST or least <= 0:
        raise argparse.ArgumentTypeError(f"`{text}` is not [WORD:...]PEER=RATIO with a peer of {', '.join(AGAINST)}")
    return set(which), against, least


def verdicts(case, floors):
    """(against, least, is it met) for each floor that speaks of this case; what failed meets none."""
    found, there = ratios(case), {"peak", *case["measured"], *case["failed"]}
    return [(against, least, found.get(against, 0.0) >= least) for which, against, least in floors
            if which <= words(case) and against in there]


def missed(data, floors):
    out = []
    for which, against, least in floors:
        if not any(verdicts(case, [(which, against, least)]) for case in data["cases"]):
            out.append(f"the floor {':'.join([*sorted(which), against])}={least:g} fits nothing that was measured")
    for case in data["cases"]:
        for against, least, met in verdicts(case, floors):
            if not met:
                found = ratios(case).get(against)
                out.append(f"{title(case)}, {case['row']} {case['direction']}: "
                           f"{'nothing' if found is None else f'{found:.3f}'} of {NAMES[against]}, floor {least:g}")
    return out


def title(case):
    return f"{case['threads']} thread{'s' if case['threads'] > 1 else ''}, D={case['d']}, {case['dtype']}"


def runs_text(data):
    out = ""
    for number, run in enumerate(data["runs"], 1):
        load = " to ".join(f"{run[when][0]:.2f}" for when in ("load_at_start", "load_at_end") if when in run)
        isa = {case["measured"]["attune"]["isa"] for case in data["cases"]
               if case["run"] == number - 1 and "attune" in case["measured"]}
        facts = [run["date"], f"{run['cpu']}, {run['may_run_on']} of {run['cores']} cores", f"load {load}",
                 f"{run['attune']} with code for {', '.join(sorted(isa)) or 'nothing'}"
                 f" (the CPU {'has' if run['amx'] else 'has no'} AMX)"]
        if "torch" in run:
            parallel = [line.strip() for line in run["parallel"] if "threads" in line or "OpenMP" in line]
            facts.append(f"torch {run['torch']} ({run['cpu_capability']}; {'; '.join(parallel)})")
        facts += [f"{name}={value}" for name, value in sorted(run["environment"].items())]
        out += f"- {'; '.join(facts)}: `{run['command']}`\n"
    return out


def page(data, floors):
    shapes = sorted({(c["threads"], c["heads"], c["seq"]) for c in data["cases"]})
    out = "# attune beside torch on the CPU\n\n" + runs_text(data) + "\n"
    out += "B=1; " + "; ".join(f"{t} thread{'s' if t > 1 else ''}: H={h}, S={s}" for t, h, s in shapes) + ".\n"
    out += ("GFLOP/s of the pairs that the mask keeps, 4 D each forward and 10 D backward: the median of the blocks'\n"
            "medians, and the best call in brackets. Blocks of each in turn. A ratio is attune's median rate by the\n"
            "other's. Torch allocates its output at each call, from memory that stays with the process, and its calls\n"
            "follow one another; between attune's the peak of one core is measured.\n\n")
    head = ["", "attune", "of peak", "SDPA", "SDPA, dense mask", "FlexAttention", "by SDPA", "by dense mask", "by Flex"]
    head += ["floors"] if floors else []
    out += f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n"
    for case in data["cases"]:
        found = ratios(case)

        def cell(name):
            if name in case["failed"]:
                return "failed"
            if name not in case["measured"]:
                return "—"
            gflops = case["measured"][name]["gflops"]
            return f"{rate(gflops['median'])} ({rate(gflops['best'])})"

        row = [f"{title(case)}, {case['row']}{' backward' if case['direction'] == 'backward' else ''}", cell("attune"),
               f"{100 * found['peak']:.0f} %" if found else "—", cell("sdpa"), cell("dense"), cell("flex")]
        row += [f"{found[name]:.2f}" if name in found else "—" for name in ("sdpa", "dense", "flex")]
        if floors:
            row.append("; ".join(f"{least:g} of {NAMES[against]}: {'met' if met else 'missed'}"
                                 for against, least, met in verdicts(case, floors)) or "—")
        out += f"| {' | '.join(row)} |\n"
    failures = [f"- {title(case)}, {case['row']} {case['direction']}: {NAMES[name]} failed: {' '.join(why.split())}"
                for case in data["cases"] for name, why in case["failed"].items()]
    failures += [f"- {case}: left out, for the limit of time" for case in data["left_out"]]
    out += "\n" + "\n".join(failures) + "\n" if failures else ""
    return out + "\n![GFLOP/s of each](cpu_peers.svg)\n"


LABELS, BARS, NUMBERS, BAR, GAP = 118, 200, 64, 11, 9  # pixels: across, across, across, down, down


def panel(cases, x, y):
    """Bars of one kind of call, longer is faster, each panel by its own fastest; and how high that came out."""
    rates = [m["gflops"]["median"] for case in cases for m in case["measured"].values()]
    most = max(rates, default=1.0)
    out = f'<text x="{x}" y="{y}" font-weight="bold">{escape(title(cases[0]))}</text>\n'
    below = y + 12
    for case in cases:
        bars = [name for name in COLOURS if name in case["measured"]]
        label = case["row"] + (" backward" if case["direction"] == "backward" else "")
        middle = below + BAR * len(bars) / 2 + 4
        out += f'<text x="{x + LABELS - 8}" y="{middle:.1f}" text-anchor="end">{label}</text>\n'
        for name in bars:
            value = case["measured"][name]["gflops"]["median"]
            length = BARS * value / most
            out += (f'<rect x="{x + LABELS}" y="{below}" width="{length:.1f}" height="{BAR}" fill="{COLOURS[name]}" '
                    'stroke="#222" stroke-width="0.5"/>'
                    f'<text x="{x + LABELS + length + 4:.1f}" y="{below + BAR - 2}" font-size="10" fill="#555">'
                    f'{rate(value)}</text>\n')
            below += BAR
        below += GAP
    return out, below - y


def picture(data):
    groups = {}
    for case in data["cases"]:
        if case["measured"]:
            groups.setdefault(title(case), []).append(case)
    across = 2 if len(groups) > 1 else 1
    left, wide = 24, LABELS + BARS + NUMBERS
    text, y, high = "", 92, 0
    for number, cases in enumerate(groups.values()):
        if number and number % across == 0:
            y, high = y + high + 20, 0
        drawn, height = panel(cases, left + (number % across) * wide, y)
        text, high = text + drawn, max(high, height)
    legend, x = "", left
    shown = {name for cases in groups.values() for case in cases for name in case["measured"]}
    for name in filter(shown.__contains__, COLOURS):
        legend += (f'<rect x="{x}" y="54" width="12" height="12" fill="{COLOURS[name]}" stroke="#222" '
                   f'stroke-width="0.5"/><text x="{x + 18}" y="64">{NAMES[name]}</text>\n')
        x += 42 + 7 * len(NAMES[name])
    width, height = max(left + across * wide, x), y + high + 8
    what = "attune beside torch on the CPU: GFLOP/s, longer is faster"
    under = "; ".join(sorted({f"{run['cpu']}, {run['date'][:10]}" for run in data["runs"]}))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#222">\n'
            f'<title>{what}</title>\n<rect width="100%" height="100%" fill="#fff"/>\n'
            f'<text x="{left}" y="24" font-size="14">{what}</text>\n'
            f'<text x="{left}" y="41" fill="#555">{escape(under)}; each panel by its own fastest</text>\n'
            f"{legend}{text}</svg>\n")
