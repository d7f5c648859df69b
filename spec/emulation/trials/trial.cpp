/*
 * trial.cpp: runs the trials whose names it is given, one after another.
 */
#include <cstring>

#include "trial.h"

const trial *trial::first = nullptr;

int main(int n, char **names)
{
    for (int i = 1; i < n; i++) {
        const trial *each = trial::first;
        while (each != nullptr && std::strcmp(each->name, names[i]) != 0)
            each = each->next;
        if (each == nullptr) {
            std::printf("no trial %s\n", names[i]);
            return 2;
        }
        each->run();
    }
    return 0;
}
