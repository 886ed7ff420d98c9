"""Problems that ship as data; `SweHandler.samples` names the files."""
