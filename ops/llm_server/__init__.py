"""Real inference servers: vLLM as a child process with the flags that training needs, and models small enough for any machine.

serving.py             one server from start to end (`rollstream llm serve`); `group_guard.py` beside this package holds its processes
starting.py            how it comes up
command_line.py        which flags and variables, and why, as pure functions
installation.py        which vLLM an interpreter has, and what its server takes
failures.py            why a server did not start, in one sentence
settings.py            settings of a machine
tiny_model.py          a tiny random model (`rollstream llm tiny`)
chat_templates.py, safetensors_file.py   what a model's folder holds
inside_vllm/           programs that run in vLLM's own environment
"""
