/*
 * methods.c: the table of methods, and which one a plan gets.
 */
#include "plan.h"

const cpli_method *const cpli_methods[CPLI_N_METHODS] = {
    &cpli_method_copy,      &cpli_method_direct,   &cpli_method_packed,
    &cpli_method_alltoallv, &cpli_method_composed,
};
static const char names[] = "copy direct packed alltoallv composed";

const char *cpl_plan_methods(void)
{
    return names;
}

/* UNSUPPORTED where the method cannot do the route, or the transport not the
 * method. */
static cpl_status check(const cpli_method *method, const cpl_comm *comm,
                        const cpl_route *route)
{
    static const char *const wants[] = {
        [CPLI_PULL] = "ranks that read each other's memory",
        [CPLI_MESSAGES] = "messages",
        [CPLI_ALLTOALL] = "an all-to-all",
    };
    if (!cpli_comm_offers(comm, method->way))
        return cpli_fail(CPL_UNSUPPORTED,
                         "exchange: method \"%s\" needs %s, which the %s "
                         "transport does not offer here",
                         method->name, wants[method->way],
                         cpl_comm_transport(comm));
    return method->check == NULL ? CPL_OK : method->check(route);
}

cpl_status cpli_method_named(const char *name, const cpl_comm *comm,
                             const cpl_route *route, const cpli_method **out)
{
    if (name == NULL || strcmp(name, "auto") == 0) {
        *out = NULL;
        return CPL_OK;
    }
    for (int i = 0; i < CPLI_N_METHODS; i++)
        if (strcmp(name, cpli_methods[i]->name) == 0) {
            *out = cpli_methods[i];
            return check(cpli_methods[i], comm, route);
        }
    return cpli_fail(CPL_INVALID,
                     "exchange: no method \"%s\"; there are: %s "
                     "auto",
                     name, names);
}

const cpli_method *cpli_method_for_parts(const cpl_comm *comm)
{
    return cpli_comm_offers(comm, CPLI_PULL) ? &cpli_method_copy
                                             : &cpli_method_direct;
}

/* ---- auto ---- */

void cpli_methods_estimate(const cpl_comm *comm, const cpli_census *census,
                           double *seconds)
{
    const cpli_cost *costs = cpli_costs_of(cpl_comm_transport(comm));
    for (int i = 0; i < CPLI_N_METHODS; i++) {
        cpli_effort effort = cpli_methods[i]->effort(census);
        seconds[i] = cpli_cost_of(&costs[i], &effort);
    }
}

const cpli_method *cpli_method_cheapest(const cpl_comm *comm,
                                        const double *seconds)
{
    int best = -1;
    for (int i = 0; i < CPLI_N_METHODS; i++)
        if (cpli_methods[i]->is_fused &&
            cpli_comm_offers(comm, cpli_methods[i]->way) &&
            (best < 0 || seconds[i] < seconds[best]))
            best = i;
    CPL_ASSERT(best >= 0);
    return cpli_methods[best];
}
