"""Problems that ship as data; `MathHandler.samples` names the files."""
