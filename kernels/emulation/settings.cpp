/*
 * settings.cpp: what can be set, by CPLAB_CUDA_<NAME> in the environment when
 * the emulator is first used, and by cpl_emulation_set at any time.
 */
#include <cctype>
#include <cstdlib>
#include <cstring>

#include "emulation.h"
#include "emulator.h"

namespace emulation
{

namespace
{

bool number(const char *text, double low, double high, double *value)
{
    char *end = nullptr;
    *value = std::strtod(text, &end);
    return end != text && *end == '\0' && *value >= low && *value <= high;
}

bool whole(const char *text, int low, int high, int *value)
{
    double x = 0;
    if (!number(text, low, high, &x) || x != static_cast<int>(x))
        return false;
    *value = static_cast<int>(x);
    return true;
}

/* The number after a colon; without one, *seed stays. */
bool seed_after(const char *colon, uint64_t *seed)
{
    double x = 0;
    if (colon == nullptr)
        return true;
    if (!number(colon + 1, 0, 9e15, &x))
        return false;
    *seed = static_cast<uint64_t>(x);
    return true;
}

bool set_order(settings &s, const char *text)
{
    const char *colon = std::strchr(text, ':');
    std::string word(text, colon ? static_cast<size_t>(colon - text)
                                 : std::strlen(text));
    if (word == "random") {
        s.order = order_kind::random;
        return seed_after(colon, &s.order_seed);
    }
    s.order = word == "reverse" ? order_kind::reverse : order_kind::forward;
    return colon == nullptr && (word == "reverse" || word == "forward");
}

bool set_delay(settings &s, const char *text)
{
    const char *colon = std::strchr(text, ':');
    std::string word(text, colon ? static_cast<size_t>(colon - text)
                                 : std::strlen(text));
    int us = 0;
    if (!whole(word.c_str(), 0, 10000000, &us))
        return false;
    s.delay_us = static_cast<unsigned>(us);
    return seed_after(colon, &s.delay_seed);
}

bool set_memory(settings &s, const char *text)
{
    std::string word(text);
    double unit = 1, x = 0;
    const char *letters = "KMG";
    const char *letter =
        word.empty() ? nullptr : std::strchr(letters, word.back());
    if (letter != nullptr && *letter != '\0') {
        unit = static_cast<double>(size_t{1024} << (10 * (letter - letters)));
        word.pop_back();
    }
    if (!number(word.c_str(), 0, 1e15 / unit, &x))
        return false;
    s.memory = static_cast<size_t>(x * unit);
    return true;
}

bool flag(const char *text, bool *out)
{
    int yes = 0;
    bool right = whole(text, 0, 1, &yes);
    *out = yes != 0;
    return right;
}

bool set_devices(settings &s, const char *text)
{
    return whole(text, 0, 64, &s.devices);
}

bool set_driver(settings &s, const char *text)
{
    return whole(text, 0, 1000000, &s.driver);
}

bool set_peers(settings &s, const char *text)
{
    return flag(text, &s.peers);
}

bool set_nccl(settings &s, const char *text)
{
    return whole(text, 0, 1000000, &s.nccl);
}

bool set_cublas(settings &s, const char *text)
{
    return flag(text, &s.cublas);
}

bool set_quiet(settings &s, const char *text)
{
    return flag(text, &s.quiet);
}

bool set_network(settings &s, const char *text)
{
    return flag(text, &s.network);
}

bool set_patience(settings &s, const char *text)
{
    return number(text, 0.001, 1e6, &s.patience_s);
}

const struct setting {
    const char *name;
    bool (*set)(settings &, const char *);
} table[] = {
    {"order", set_order},       {"delay", set_delay},    {"memory", set_memory},
    {"devices", set_devices},   {"driver", set_driver},  {"peers", set_peers},
    {"nccl", set_nccl},         {"quiet", set_quiet},    {"cublas", set_cublas},
    {"patience", set_patience}, {"network", set_network}};

std::mutex &lock()
{
    static std::mutex *mutex = new std::mutex;
    return *mutex;
}

settings from_environment()
{
    settings result;
    for (const setting &each : table) {
        std::string name = "CPLAB_CUDA_";
        for (const char *c = each.name; *c != '\0'; c++)
            name += static_cast<char>(std::toupper(*c));
        const char *text = std::getenv(name.c_str());
        settings changed = result;
        if (text == nullptr)
            continue;
        if (each.set(changed, text))
            result = changed;
        else
            std::fprintf(stderr, "cuda emulation: %s=%s is not understood\n",
                         name.c_str(), text);
    }
    return result;
}

settings &the_settings()
{
    static settings *current = new settings(from_environment());
    return *current;
}

} // namespace

settings current_settings()
{
    std::lock_guard<std::mutex> hold(lock());
    return the_settings();
}

} // namespace emulation

extern "C" int cpl_emulation_set(const char *name, const char *value)
{
    using namespace emulation;
    std::lock_guard<std::mutex> hold(lock());
    for (const setting &each : table) {
        settings changed = the_settings();
        if (std::strcmp(each.name, name) != 0)
            continue;
        if (!each.set(changed, value))
            return -1;
        the_settings() = changed;
        return 0;
    }
    return -1;
}
