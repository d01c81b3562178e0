"""Readers of the lines that programs print: values in, values out, no judgement."""
