"""Problems that ship as data; `CodeHandler.samples` names the files."""
