"""Two pages as one: where a page is shown alone, as in Kubeflow's UI, a link to the one beside it leads nowhere."""

import re

LINK = re.compile(r'<p id="lineage">.*?</p>', re.DOTALL)
TREE = re.compile(r'<ul class="tree">.*</ul>', re.DOTALL)
SUMMARY = "<summary>What the pick was made from, down to the files</summary>"


def with_lineage(report: str, lineage: str) -> str:
    """Return the report with the tree of the lineage page in place of the link to that page; "" = there is none."""
    tree = TREE.search(lineage)
    if tree is None:
        return report
    return LINK.sub(lambda _: f'<details id="lineage">{SUMMARY}\n{tree[0]}\n</details>', report, count=1)
