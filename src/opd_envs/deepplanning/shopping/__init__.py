"""The shopping part of DeepPlanning: its cases as a tool database, tools with its interface, carts that live as long as a conversation.

Facts are those of github.com/QwenLM/Qwen-Agent, folder `benchmark/deepplanning/shoppingplanning`, as of commit 31a4d36d. The
archives themselves were never at hand.
"""
