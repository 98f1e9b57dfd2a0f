"""The travel part of the published benchmark DeepPlanning: its archives as a tool database, and tools with its interface.

Names of files, column names, arguments and replies follow github.com/QwenLM/Qwen-Agent, folder
`benchmark/deepplanning/travelplanning`, commit 28ec4a3f. The archives were never available here.
"""
