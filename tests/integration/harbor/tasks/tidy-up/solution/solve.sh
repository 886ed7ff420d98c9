#!/bin/bash
mkdir letters && touch letters/one letters/two
