/*
 * planted.cpp: bugs that the checker must name, each beside its correct twin,
 * and correct kernels that it must not complain of.
 *
 *     planted ORDER      order: forward, reverse, random:SEED
 *
 * Prints a line for each report: CASE, a tab, "wrong" or "right", a tab, the
 * sentence; and a line without a sentence where there was none. A line of a
 * kernel that a report must name ends in a comment, bug: CASE.
 */
#include "planted.h"
#include "emulation/checker.h"
#include "emulation/emulation.h"
#include <cstdio>

namespace
{

void run(const planted_case &c, bool right)
{
    bench b;
    cudaGetLastError(); /* of the case before */
    cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b.other, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&b.event, cudaEventDisableTiming);
    cudaMalloc(reinterpret_cast<void **>(&b.in), 4 * N);
    cudaMalloc(reinterpret_cast<void **>(&b.out), 4 * N);
    cudaMallocHost(reinterpret_cast<void **>(&b.host), 4 * N);
    for (int i = 0; i < N; i++)
        b.host[i] = i;
    cudaMemcpyAsync(b.in, b.host, 4 * N, cudaMemcpyHostToDevice, b.stream);
    cudaStreamSynchronize(b.stream);
    c.run(b, right);
    cudaDeviceSynchronize();
    if (right && cudaPeekAtLastError() != cudaSuccess)
        std::printf("%s\tright\tan error: %s\n", c.name, cpl_emulation_why());
    cudaStreamDestroy(b.stream); /* waits, with a fault as well */
    cudaStreamDestroy(b.other);
    const char *side = right ? "right" : "wrong";
    for (int i = 0; i < cpli_check_n_reports(); i++)
        std::printf("%s\t%s\t%s\n", c.name, side, cpli_check_sentence(i));
    if (cpli_check_n_reports() == 0)
        std::printf("%s\t%s\t\n", c.name, side);
    cpli_check_reset();
    cpl_emulation_forgive();
    cudaFree(b.in);
    cudaFree(b.out);
    cudaFreeHost(b.host);
    cudaEventDestroy(b.event);
}

} // namespace

int main(int n_words, char **words)
{
    if (n_words < 2 || cpl_emulation_set("order", words[1]) != 0) {
        std::fprintf(stderr, "usage: planted forward|reverse|random:SEED\n");
        return 2;
    }
    for (auto list : {bugs_of_blocks, bugs_of_streams, correct_ones})
        for (const planted_case *c = list; c->name != nullptr; c++)
            for (bool right : {false, true})
                if (right || c->has_bug)
                    run(*c, right);
    return 0;
}
