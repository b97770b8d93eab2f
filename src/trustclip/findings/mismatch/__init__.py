"""Sampler against trainer: do they agree, and if not, why?"""
