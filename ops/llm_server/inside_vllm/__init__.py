"""Programs for the interpreter that has vLLM: standard library and vLLM only, none of this project."""
