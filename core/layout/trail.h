/*
 * trail.h: the real tokens of one sequence in order, span by span, whoever
 * holds them. What layers cost is counted by following all trails once
 * (key_traffic.c, hops.c).
 */
#ifndef CPLI_TRAIL_H
#define CPLI_TRAIL_H

#include "layout.h"

/* All zero but the lookup's layout at first. */
typedef struct cpli_trail {
    cpli_lookup lookup;
    cpli_holding *items; /* start: offset in the sequence */
    int64_t n;
    int64_t capacity;
} cpli_trail;

/* Lists the spans of a sequence; sequences in order are cheap. Errors: MEMORY.
 */
cpl_status cpli_trail_follow(cpli_trail *trail, int64_t sequence);
void cpli_trail_end(cpli_trail *trail);

/*
 * Trails that are alike: the same ranks in order, and lengths that are the same
 * multiples of their first span's. Layouts that cut every sequence in the same
 * way have one pattern for thousands of sequences, which is then counted once.
 * All zero at first: none was added yet.
 */
typedef struct cpli_pattern {
    cpli_holding *items; /* ranks, and lengths in units */
    int64_t n;
    int64_t capacity;
    int64_t times; /* how many trails were added, ... */
    int64_t sum;   /* ... and the sums over them of the unit and its square */
    int64_t sum2;
} cpli_pattern;

/* Adds a trail if it is alike; else changes nothing and returns false. */
bool cpli_pattern_add(cpli_pattern *pattern, const cpli_trail *trail);
/* Starts with this trail, of one span or more. Errors: MEMORY. */
cpl_status cpli_pattern_begin(cpli_pattern *pattern, const cpli_trail *trail);
void cpli_pattern_end(cpli_pattern *pattern);

#endif
