"""One HTML page about a run, which loads no other file."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popdist._version import __version__
from popdist.report import drawing, figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist.report.run_reader import Run


STYLE = Path(__file__).with_name("page.css").read_text(encoding="utf-8") + "".join(
    f".c{place} {{ background: {code}; }}\n" for place, code in enumerate(drawing.COLORS)
)
STYLE += "".join(
    f".t{place}:not(:checked) ~ svg .p{place} {{ display: none; }}\n"
    for place in range(figures.MOST_SHOWN + 2)
)
"""With a class for each colour, and for each line that a box hides."""

_MOST_DRAWN = 64
_MOST_REPLICAS = 16
_MOST_HOSTS = 256


def topology(run: Run) -> str:
    """Draws hosts, their instances, and the replicas of each instance."""
    known = {one["index"]: one for one in run.result.get("instances", [])}
    if not known:
        listed = ", ".join(map(str, run.instances))
        return (
            '<section id="topology"><h2>Topology</h2>'
            f"<p>Where instances {listed} ran is not known.</p></section>"
        )
    hosts: dict[str, list[dict[str, Any]]] = {}
    for one in known.values():
        hosts.setdefault(str(one.get("host")), []).append(one)
    inside = _drawn(hosts) if len(known) <= _MOST_DRAWN else _listed(hosts)
    return f'<section id="topology"><h2>Topology</h2>{inside}</section>'


def _drawn(hosts: dict[str, list[dict[str, Any]]]) -> str:
    boxes = [
        f'<div class="host"><b>{escape(name)}</b>{"".join(map(_instance, members))}</div>'
        for name, members in hosts.items()
    ]
    return f'<div class="hosts">{"".join(boxes)}</div>'


def _instance(one: dict[str, Any]) -> str:
    first, count = one.get("replica_offset", 0), one.get("replicas", 1)
    drawn = "".join(f"<i>{first + number}</i>" for number in range(min(count, _MOST_REPLICAS)))
    more = f" and {count - _MOST_REPLICAS} more" if count > _MOST_REPLICAS else ""
    how = _ending(one)
    failed = " failed" if how else ""
    return (
        f'<div class="instance{failed}">instance {one["index"]}: replicas {drawn}{more}'
        f'<div class="soft">PID {escape(str(one.get("pid")))}{how}</div></div>'
    )


def _ending(one: dict[str, Any]) -> str:
    if one.get("signal"):
        return f", {escape(str(one['signal']))}"
    code = one.get("exit_code")
    if code == 0:
        return ""
    return f", exit code {escape(str(code))}" if code is not None else ", did not end by itself"


def _listed(hosts: dict[str, list[dict[str, Any]]]) -> str:
    rows = []
    for name, members in list(hosts.items())[:_MOST_HOSTS]:
        indices = [one["index"] for one in members]
        replicas = sum(one.get("replicas", 1) for one in members)
        bad = [str(one["index"]) for one in members if _ending(one)]
        rows.append(
            f"<tr><td>{escape(name)}</td><td>{min(indices)} to {max(indices)}</td>"
            f"<td>{replicas}</td><td>{', '.join(bad[:12]) or 'all well'}</td></tr>"
        )
    head = "<th>host</th><th>instances</th><th>replicas</th><th>not ended well</th>"
    more = f"<p>and {len(hosts) - _MOST_HOSTS} more hosts</p>" if len(hosts) > _MOST_HOSTS else ""
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>{more}'


_MIB = 2**20
_MOST_WORK = 8
_MOST_ROWS = 256
_NOTABLE = 0.05
_DIGEST = b64encode(sha256(STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_DIGEST}'"
"""No script runs, and no style but the page's own, whatever a log or a name brings in."""


def page(run: Run, *, reload: float | None = None) -> str:
    """The page as HTML; ``reload`` is the time in seconds after which a browser loads it again."""
    work = {index: figures.work(lines) for index, lines in sorted(run.exchanges.items())}
    totals = {index: whole for index, parts in work.items() if (whole := figures.altogether(parts))}
    slowest = figures.slowest(totals)
    chosen = figures.shown(run.instances, [slowest])
    sections = [
        _head(run),
        _gaps(run),
        topology(run),
        _curves(run, chosen),
        _work(run, work, totals, slowest),
        _memory(run, chosen),
        _trace(run),
        _endings(run),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        + (f'<meta http-equiv="refresh" content="{reload:g}">' if reload else "")
        + f"<title>{escape(_title(run))}</title><style>{STYLE}</style></head><body>\n"
        + "\n".join(filter(None, sections))
        + f'\n<p class="soft">popdist {__version__}, from {escape(str(run.folder))}</p>'
        "</body></html>\n"
    )


def _title(run: Run) -> str:
    first, *others = [*map(str, run.result.get("job", {}).get("program", [])), ""]
    return " ".join([Path(first).name, *others]).strip() or run.folder.resolve().name


def _head(run: Run) -> str:
    result = run.result
    job = result.get("job", {})
    cards = [
        (len(run.instances), "instances"),
        (job.get("num_replicas"), "replicas"),
        (len(result.get("hosts", [])) or None, "hosts"),
        (_seconds(result.get("seconds")), "duration"),
        (result.get("restarts"), "restarts"),
    ]
    known = "".join(
        f'<div class="card"><b>{escape(str(value))}</b>{what}</div>'
        for value, what in cards
        if value is not None
    )
    started = f"started {escape(str(result['started']))}" if "started" in result else ""
    return (
        f"<h1>{escape(_title(run))}</h1>{_verdict(result)}"
        f'<p class="soft">{started}</p><div class="cards">{known}</div>'
    )


def _verdict(result: dict[str, Any]) -> str:
    if not result:
        return '<p class="bad">How the job ended is not known.</p>'
    if result.get("success"):
        return '<p class="good">The job ended well.</p>'
    error = result.get("error") or {}
    message = escape(str(error.get("message", "")))
    memory = " It was out of memory." if error.get("out_of_memory") else ""
    return (
        f'<p class="bad">The job failed with exit code {escape(str(result.get("exit_code")))}: '
        f"{message}.{memory}</p>"
    )


def _gaps(run: Run) -> str:
    if not run.gaps:
        return ""
    listed = "".join(f"<li>{escape(gap)}</li>" for gap in run.gaps)
    return f'<section id="missing"><h2>What is missing</h2><ul>{listed}</ul></section>'


def _curves(run: Run, chosen: Sequence[int]) -> str:
    if not run.steps:
        return ""
    began = min(lines[0]["time"] for lines in run.steps.values())
    loss = {index: figures.losses(run.steps.get(index, [])) for index in chosen}
    speed = {index: figures.throughput(run.steps.get(index, []), began) for index in chosen}
    mean = {drawing.MEAN: figures.mean_loss(run.steps)} if len(run.steps) > 1 else {}
    return "".join(
        f'<section id="{name}"><h2>{title}</h2>{_toggles(name, known)}'
        f"{drawing.lines(known, x=x, y=y)}{note}</section>"
        for name, title, known, x, y, note in (
            ("loss", "Loss", _named(loss) | mean, "step", "loss", _not_finite(loss)),
            ("throughput", "Throughput", _named(speed), "seconds", "samples / s", _total(run)),
        )
        if any(known.values())
    )


def _named(series: dict[int, figures.Points]) -> dict[str, figures.Points]:
    return {f"instance {index}": points for index, points in series.items() if points}


def _not_finite(series: dict[int, figures.Points]) -> str:
    bad = [
        (index, step)
        for index, points in series.items()
        for step, value in points
        if value - value != 0  # NaN and infinity
    ]
    if not bad:
        return ""
    index, step = min(bad, key=lambda one: one[1])
    return (
        f'<p class="bad">The loss is NaN or infinite on instance {index} '
        f"at step {step:.0f} and possibly before; gaps in the lines are such steps.</p>"
    )


def _total(run: Run) -> str:
    rates = []
    for lines in run.steps.values():
        seconds = sum(line["seconds"] for line in lines[1:])
        if seconds > 0:
            rates.append(sum(line.get("samples", 0) for line in lines[1:]) / seconds)
    return f"<p>All instances together: {sum(rates):,.0f} samples / s on average.</p>"


def _work(
    run: Run,
    work: dict[int, list[figures.Work]],
    totals: dict[int, figures.Work],
    slowest: int | None,
) -> str:
    if not totals:
        return ""
    most = max(one.computed + one.waited for parts in work.values() for one in parts)
    said = ""
    if slowest is not None:
        least = min(totals.values(), key=lambda one: one.computed).computed
        more = totals[slowest].computed / least - 1 if least else 0.0
        said = (
            f"<p>The slowest is <b>instance {slowest}</b>: a round takes it "
            f"{totals[slowest].computed * 1e3:.3g} ms beside the exchange, {more:.1%} more than "
            f"the fastest. {'The others wait for it.' if more > _NOTABLE else 'All are alike.'}</p>"
        )
    listed = figures.shown(list(totals), [slowest])
    parts = {
        index: [
            ("computing", totals[index].computed * 1e3),
            ("waiting", totals[index].waited * 1e3),
        ]
        for index in listed
    }
    pictures = "".join(
        f"<p>Instance {index}</p>{drawing.stretches(work[index], most)}"
        for index in listed[:_MOST_WORK]
    )
    return (
        '<section id="exchange"><h2>Exchange against compute</h2>'
        '<p class="legend"><span><i class="dot computing"></i>computing, '
        'data and everything else</span><span><i class="dot waiting"></i>'
        f"waiting for the exchange</span></p>{said}{_rounds(run, totals)}"
        "<p>A round on average, by instance:</p>"
        f"{drawing.bars(parts, 'ms')}{_work_table(totals, slowest)}{pictures}</section>"
    )


def _rounds(run: Run, totals: dict[int, figures.Work]) -> str:
    """Explains a round, and counts rounds beside steps."""
    index = min(totals)
    rounds = sum(int(line["count"]) for line in run.exchanges[index])
    steps = sum(int(line["count"]) for line in run.steps.get(index, []))
    counted = f": instance {index} had {rounds} in {steps} recorded steps" if steps else ""
    return (
        f"<p>A round is one wait for sums over the instances{counted}. Each update has one, and "
        "so has each comparison that does not travel with gradients.</p>"
    )


def _work_table(totals: dict[int, figures.Work], slowest: int | None) -> str:
    rows = [
        f"<tr><td>{index}{' (slowest)' if index == slowest else ''}</td><td>{one.rounds}</td>"
        f"<td>{one.computed * 1e3:.3f}</td><td>{one.waited * 1e3:.3f}</td>"
        f"<td>{one.share:.1%}</td></tr>"
        for index, one in list(totals.items())[:_MOST_ROWS]
    ]
    head = (
        "<th>instance</th><th>rounds</th><th>computing, ms</th><th>waiting, ms</th><th>waiting</th>"
    )
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _memory(run: Run, chosen: Sequence[int]) -> str:
    peaks = figures.memory(run)
    if not peaks:
        return ""
    largest = max(peaks, key=lambda index: peaks[index])
    parts = {index: [("memory", peaks[index] / _MIB)] for index in chosen if index in peaks}
    parts.setdefault(largest, [("memory", peaks[largest] / _MIB)])
    return (
        '<section id="memory"><h2>Peak memory</h2>'
        f"<p>The most is {peaks[largest] / _MIB:,.0f} MiB, on instance {largest}.</p>"
        f"{drawing.bars(dict(sorted(parts.items())), 'MiB')}</section>"
    )


def _trace(run: Run) -> str:
    waits, phases = figures.waits(run.trace), figures.phases(run.trace)
    if not waits and not phases:
        return ""
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{count}</td><td>{seconds * 1e3:,.1f}</td>"
        f"<td>{seconds / count * 1e3:.3f}</td></tr>"
        for name, (count, seconds) in list(phases.items())[:20]
    )
    waited = "; ".join(f"instance {index} {seconds:.3f} s" for index, seconds in waits.items())
    return (
        '<section id="timeline"><h2>Collectives, as Horovod traced them</h2>'
        f"<p>Waited for the others to submit: {waited or 'no instance, as far as recorded'}.</p>"
        '<div class="wide"><table><tr><th>phase</th><th>times</th><th>ms</th><th>ms each</th></tr>'
        f"{rows}</table></div>"
        '<p class="soft">Horovod records on instance 0. Perfetto shows the file itself, event by '
        "event.</p></section>"
    )


def _endings(run: Run) -> str:
    """The attempts where there were several, and the last lines of instances that failed."""
    parts = []
    attempts = run.result.get("attempts", [])
    if len(attempts) > 1:
        rows = "".join(
            f"<tr><td>{number}</td><td>{escape(str(one.get('exit_code')))}</td>"
            f"<td>{escape(str(one.get('seconds')))}</td>"
            f"<td>{escape(str(one.get('error') or ''))}</td></tr>"
            for number, one in enumerate(attempts)
        )
        head = "<th>start</th><th>exit code</th><th>seconds</th><th>error</th>"
        parts.append(f"<h2>Starts of the job</h2><table><tr>{head}</tr>{rows}</table>")
    blamed = (run.result.get("error") or {}).get("instances") or []
    for index, tail in sorted(run.tails.items()):
        if tail and (index in blamed or not run.result):
            text = escape("\n".join(tail))
            parts.append(f"<h2>Last words of instance {index}</h2><pre>{text}</pre>")
    return f'<section id="endings">{"".join(parts)}</section>' if parts else ""


def _toggles(section: str, series: dict[str, figures.Points]) -> str:
    """A box for each line of the picture that follows, by which it is hidden, without a script."""
    return "".join(
        f'<input type="checkbox" class="toggle t{place}" id="{section}{place}" checked>'
        f'<label for="{section}{place}"><i class="dot {drawing.color_class(name, place)}"></i>'
        f"{name}</label>"
        for place, name in enumerate(series)
    )


def _seconds(value: object) -> str | None:
    if not isinstance(value, int | float):
        return None
    minutes, seconds = divmod(float(value), 60)
    return f"{minutes:.0f} min {seconds:.0f} s" if minutes else f"{seconds:.1f} s"
