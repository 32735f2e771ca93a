"""docs/notebook.md: the notebook beside it has the cells of the page, and runs in a kernel."""

import nbformat
from nbclient import NotebookClient

from tests.docs.test_pages import ROOT, blocks

PAGE = ROOT / "docs" / "notebook.md"
NOTEBOOK = ROOT / "docs" / "examples" / "notebook.ipynb"


def test_the_notebook_runs(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.source for cell in cells] == [text.rstrip("\n") for kind, text in blocks(PAGE) if kind == "python"]
    assert all(not cell.outputs for cell in cells), "the notebook is kept without outputs"
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in shown} <= {"execute_result", "stream", "display_data"}
    (html,) = (output.data["text/html"] for output in shown if "text/html" in output.get("data", {}))
    assert html.startswith("<table><caption>engine notebook: stopped</caption>")
