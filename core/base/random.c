/*
 * random.c: counter-based random numbers. Element i of a stream depends on
 * (key, i) alone, so weights and data are the same on any number of ranks.
 * The mixer is the SplitMix64 finaliser (Steele, Lea, Flood, OOPSLA 2014).
 */
#include <math.h>

#include "base.h"

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t cpl_hash(uint64_t seed, const void *data, size_t bytes)
{
    uint64_t hash = seed != 0 ? seed : 0xcbf29ce484222325u;
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ p[i]) * 0x100000001b3u;
    return hash;
}

uint64_t cpl_random_key(uint64_t seed, const char *name)
{
    return mix(cpl_hash(mix(seed + 1), name, strlen(name)));
}

uint64_t cpl_random_bits(uint64_t key, uint64_t index)
{
    return mix(mix(key + 0x9e3779b97f4a7c15u * (index + 1)) ^ key);
}

double cpl_random_uniform(uint64_t key, uint64_t index)
{
    /* 53 bits, moved off 0 by half a step. */
    return ((double)(cpl_random_bits(key, index) >> 11) + 0.5) * 0x1p-53;
}

double cpl_random_normal(uint64_t key, uint64_t index)
{
    double radius = sqrt(-2 * log(cpl_random_uniform(key, 2 * index)));
    double angle =
        6.283185307179586477 * cpl_random_uniform(key, 2 * index + 1);
    return radius * cos(angle);
}
