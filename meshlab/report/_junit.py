"""A report as JUnit XML, which the dashboards of continuous integration show."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from meshlab.analysis._thresholds import ThresholdCheck
from meshlab.report._answers import Answer
from meshlab.report._stages import Stages

# XML 1.0 has no way to write these characters, not even as references.
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# A failure is a verdict. Without a verdict, JUnit has errors.
_TAGS = {"failed": "failure", "not decided": "error"}


def junit_xml(
    title: str, answers: Sequence[Answer], check: ThresholdCheck | None, elapsed_s: float, stages: Stages | None = None
) -> str:
    """Return one test case per answer, or per stage and host of an acceptance, and one per threshold."""
    suite = ET.Element("testsuite", name=_legal(title))
    for stage in stages.items if stages is not None else ():
        case = ET.SubElement(
            suite, "testcase", classname="meshlab.acceptance", name=stage.name, time=f"{stage.elapsed_s:.3f}"
        )
        text = _legal("\n".join(stage.sentences))
        if stage.outcome == "failed":
            ET.SubElement(case, "failure", message=_legal(stage.sentences[0])).text = text
        elif stage.outcome == "not decided":
            ET.SubElement(case, "error", message=_legal(stage.sentences[0])).text = text
        elif stage.outcome == "skipped":
            ET.SubElement(case, "skipped", message=text)
        else:
            ET.SubElement(case, "system-out").text = text
    for verdict in stages.nodes.verdicts if stages is not None and stages.nodes is not None else ():
        case = ET.SubElement(suite, "testcase", classname="meshlab.acceptance.nodes", name=_legal(verdict.host))
        text = _legal("\n".join(verdict.findings) or verdict.outcome)
        if verdict.outcome in _TAGS:
            ET.SubElement(case, _TAGS[verdict.outcome], message=text.partition("\n")[0]).text = text
        else:
            ET.SubElement(case, "system-out").text = text
    if stages is not None and stages.outcome == "not decided":
        case = ET.SubElement(suite, "testcase", classname="meshlab.acceptance", name="verdict")
        ET.SubElement(case, "error", message=_legal(stages.headline.sentences[0]))
    # The stages of an acceptance contain the answers already.
    for answer in answers if stages is None else ():
        if answer.state == "plain" or answer.question == "thresholds":
            continue
        case = ET.SubElement(suite, "testcase", classname="meshlab.report", name=answer.question)
        text = _legal("\n".join(answer.sentences))
        if answer.outcome in _TAGS:
            ET.SubElement(case, _TAGS[answer.outcome], message=_legal(answer.sentences[0])).text = text
        else:
            ET.SubElement(case, "system-out").text = text
    for number, outcome in enumerate(check.outcomes if check is not None else ()):
        assert check is not None
        limit = check.thresholds.limits[number]
        case = ET.SubElement(suite, "testcase", classname="meshlab.analysis._thresholds", name=_legal(str(limit)))
        if outcome != "passed":
            tag = "failure" if outcome == "failed" else "error"
            ET.SubElement(case, tag, message=outcome).text = _legal("\n".join(check.sentences(number)))
    tags = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    counts = {name: str(len(suite.findall(f"testcase/{tag}"))) for name, tag in tags.items()}
    suite.attrib |= {"tests": str(len(suite)), **counts, "time": f"{elapsed_s:.3f}"}
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'


def _legal(text: str) -> str:
    return _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", text)
