"""The published benchmark DeepPlanning, travel part: its archives as a tool database, and tools with its interface.

Facts (file and column names, arguments, what a tool answers) are those of github.com/QwenLM/Qwen-Agent, folder
`benchmark/deepplanning/travelplanning`, as of commit 28ec4a3f. The archives themselves were never at hand: what is known
of them is what the benchmark's tools and evaluation read. `check` names what differs in a real one.
"""
