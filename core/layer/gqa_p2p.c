/*
 * gqa_p2p.c: cp_mode "p2p". Keys and values go round the ring of gqa_ring.h;
 * while a rank works on one shard, the next one is on its way to it. Partial
 * results are joined as they are made (the kernel goes on from o and lse).
 *
 * Backward sends keys and values round again, and behind them their gradients:
 * each rank adds its part to what came from the rank before, and the last one
 * that saw a key of the shard sends them home, where they meet the home's own
 * part. So sums have one order, and no rank ever holds more than two shards of
 * keys and three of gradients beside its own.
 */
#include "gqa.h"
#include "trace/trace.h"

/* What happens between two steps, by the number of the later one: who has no
 * part in it has no plan, but with room (comm.h) everyone takes part. */
typedef struct hop_plans {
    cpli_carrier keys;   /* on to the next rank, for this step */
    cpl_plan *gradients; /* of the step before, on to the next rank */
    cpl_plan *home;      /* of the step before, to whose keys they are of */
    bool brings_keys, brings_gradients;
} hop_plans;

struct cpli_round {
    cpli_core *core;
    const cpli_ring *ring;
    hop_plans *hops;     /* n_hops + 1; the first is empty */
    int n_hops;          /* the ring may be gone when the round is destroyed */
    bool has_room;       /* all is done at every step, whoever sees whom */
    cpl_tensor *keys[2]; /* of others; step s in [s % 2] */
    cpl_tensor *mine[2]; /* gradients of others' keys that are made here */
    cpl_tensor *theirs;  /* those that came from the rank before */
    cpl_tensor *home;    /* those of my keys that others made */
    void *workspace;
};

/* ---- prepare ---- */

/* The rank that has my place in another group. */
static int rank_in(const cpli_round *round, int group)
{
    const cpli_ring *ring = round->ring;
    int place = round->core->layer->place->rank % ring->a2a;
    int n = ring->n_groups;
    return (group % n + n) % n * ring->a2a + place;
}

/* The first rows of one rank's buffer to the first of another's. Only shards
 * with rows are ever seen, so a message that there is has some. */
typedef struct message {
    cpl_segment send, receive;            /* peer -1: none */
    int64_t n_source_rows, n_target_rows; /* of the buffers */
} message;

static cpl_segment shard_of(const cpli_round *round, int group, bool moves,
                            int peer_group)
{
    return (cpl_segment){.peer = moves ? rank_in(round, peer_group) : -1,
                         .length = round->ring->n_rows_of[group]};
}

/* A message as a part of a route; its segments lie in the message. */
static cpl_route_part part_of(const message *m)
{
    return (cpl_route_part){.sends = &m->send,
                            .receives = &m->receive,
                            .n_sends = m->send.peer >= 0 ? 1 : 0,
                            .n_receives = m->receive.peer >= 0 ? 1 : 0,
                            .n_source_rows = m->n_source_rows,
                            .n_target_rows = m->n_target_rows};
}

static cpl_status make_plan(const cpli_round *round, const message *m,
                            cpl_plan **out)
{
    const cpl_layer *layer = round->core->layer;
    const cpl_route_part part = part_of(m);
    if (part.n_sends + part.n_receives == 0 && !round->has_room)
        return CPL_OK;
    return cpli_plan_from_parts(&part, layer->place->comm, layer->dtype,
                                cpli_core_kv_width(round->core), out);
}

/* Keys on their way to step `step`, out of the buffer of the step before. */
static message keys_message(const cpli_round *round, int step)
{
    const cpli_ring *ring = round->ring;
    int own = ring->group;
    int held = cpli_ring_origin(ring, own, step - 1);
    int next = cpli_ring_origin(ring, own, step);
    return (message){
        .send = shard_of(round, held, ring->last[held] >= step, own + 1),
        .receive = shard_of(round, next, ring->last[next] >= step, own - 1),
        .n_source_rows = step == 1 ? ring->n_rows : ring->max_rows,
        .n_target_rows = ring->max_rows};
}

/* Whether gradients of a group's keys go on from a step to the next. */
static bool go_on(const cpli_ring *ring, int group, int step)
{
    return ring->first[group] > 0 && ring->first[group] <= step &&
           step < ring->last[group];
}

static message gradients_message(const cpli_round *round, int step)
{
    const cpli_ring *ring = round->ring;
    int own = ring->group;
    int held = cpli_ring_origin(ring, own, step - 1);
    int next = cpli_ring_origin(ring, own, step);
    return (message){
        .send = shard_of(round, held, go_on(ring, held, step - 1), own + 1),
        .receive = shard_of(round, next, go_on(ring, next, step - 1), own - 1),
        .n_source_rows = ring->max_rows,
        .n_target_rows = ring->max_rows};
}

/* From the last that saw a key of the shard, step - 1 groups on. */
static message home_message(const cpli_round *round, int step)
{
    const cpli_ring *ring = round->ring;
    int own = ring->group;
    int from = own + step - 1;
    int held = cpli_ring_origin(ring, own, step - 1);
    bool goes = ring->last[held] == step - 1;
    bool comes = ring->last[own] == step - 1;
    return (message){.send = shard_of(round, held, goes, held),
                     .receive = shard_of(round, own, comes, from),
                     .n_source_rows = ring->max_rows,
                     .n_target_rows = ring->n_rows};
}

static cpl_status make_keys(cpli_round *round, int step, hop_plans *hop)
{
    const cpl_layer *layer = round->core->layer;
    const message keys = keys_message(round, step);
    const cpl_route_part part = part_of(&keys);
    hop->brings_keys = keys.receive.peer >= 0;
    return cpli_carrier_create(layer, &part, layer->dtype,
                               cpli_core_kv_width(round->core), &hop->keys);
}

static cpl_status make_gradients(cpli_round *round, int step, hop_plans *hop)
{
    const message gradients = gradients_message(round, step);
    hop->brings_gradients = gradients.receive.peer >= 0;
    return make_plan(round, &gradients, &hop->gradients);
}

static cpl_status make_home(cpli_round *round, int step, hop_plans *hop)
{
    const message home = home_message(round, step);
    return make_plan(round, &home, &hop->home);
}

/* Keys go up to the last step; what a step makes of others' keys, from the
 * first on, goes on or home after it. */
static cpl_status make_hops(cpli_round *round)
{
    int n = round->ring->n_groups;
    CPL_TRY(CPL_ALLOC(n + 1, &round->hops));
    round->n_hops = n;
    for (int step = 1; step <= n; step++) {
        hop_plans *hop = &round->hops[step];
        if (step > 1)
            CPL_TRY(make_home(round, step, hop));
        if (step < n)
            CPL_TRY(make_keys(round, step, hop));
        if (step > 1 && step < n)
            CPL_TRY(make_gradients(round, step, hop));
    }
    return CPL_OK;
}

static cpl_status make_buffers(cpli_round *round)
{
    int64_t n = round->ring->max_rows;
    int64_t width = cpli_core_kv_width(round->core);
    const cpli_buffer buffers[] = {
        {&round->keys[0], n, width, CPLI_SCRATCH},
        {&round->keys[1], n, width, CPLI_SCRATCH},
        {&round->mine[0], n, width, CPLI_SCRATCH},
        {&round->mine[1], n, width, CPLI_SCRATCH},
        {&round->theirs, n, width, CPLI_SCRATCH},
        {&round->home, round->ring->n_rows, width, CPLI_SCRATCH},
    };
    if (round->ring->n_groups > 1)
        CPL_TRY(cpli_layer_buffers(round->core->layer, buffers,
                                   sizeof buffers / sizeof *buffers));
    return cpli_core_workspace(round->core, round->ring->max_blocks, n,
                               &round->workspace);
}

cpl_status cpli_round_create(cpli_core *core, const cpli_ring *ring,
                             cpli_round **out)
{
    cpli_round *round;
    cpl_status status;
    CPL_TRY(CPL_ALLOC(1, &round));
    round->core = core;
    round->ring = ring;
    round->has_room = cpli_has_room(core->layer->place->memory);
    CPL_TRY_GO(make_hops(round), fail);
    CPL_TRY_GO(make_buffers(round), fail);
    *out = round;
    return CPL_OK;
fail:
    cpli_round_destroy(round);
    return status;
}

void cpli_round_destroy(cpli_round *round)
{
    if (round == NULL)
        return;
    for (int i = 1; i <= round->n_hops; i++) {
        cpli_carrier_destroy(&round->hops[i].keys);
        cpl_plan_destroy(round->hops[i].gradients);
        cpl_plan_destroy(round->hops[i].home);
    }
    cpli_free(round->hops);
    cpli_free(round);
}

/* ---- steps ---- */

static cpl_status start(cpl_plan *plan, const cpl_tensor *src, cpl_tensor *dst)
{
    return plan != NULL ? cpl_plan_start(plan, src, dst) : CPL_OK;
}

static cpl_status finish(cpl_plan *plan)
{
    return plan != NULL ? cpl_plan_finish(plan) : CPL_OK;
}

/* The keys that a rank works on at a step. */
static cpl_tensor *keys_at(const cpli_round *round, int step)
{
    return step == 0 ? round->core->kv : round->keys[step % 2];
}

/* Keys of a step go on to the next; the last step has none. */
static cpl_status start_keys(const cpli_round *round, int step, bool traced)
{
    return cpli_carrier_start(&round->hops[step + 1].keys, keys_at(round, step),
                              round->keys[(step + 1) % 2], traced);
}

static cpl_status finish_keys(const cpli_round *round, int step, bool traced)
{
    const cpli_ring *ring = round->ring;
    hop_plans *hop = &round->hops[step + 1];
    CPL_TRY(cpli_carrier_finish(&hop->keys));
    if (!traced || !hop->brings_keys)
        return CPL_OK;
    return cpli_ring_check(round->core->layer, ring,
                           cpli_ring_origin(ring, ring->group, step + 1),
                           round->keys[(step + 1) % 2]);
}

static const cpli_turn *turn_at(const cpli_round *round, int step)
{
    int n = round->ring->n_groups;
    bool is_fault = step > 0 && cpl_faults_here()->reverse_ring != 0;
    return &round->ring->turns[is_fault ? n - step : step];
}

/* ---- forward ---- */

static void attend(const cpli_round *round, int step)
{
    const cpli_turn *turn = turn_at(round, step);
    if (step > 0 && turn->n_blocks == 0 && !round->has_room)
        return;
    cpl_attention attention = cpli_core_attention(
        round->core, keys_at(round, step), round->workspace);
    attention.blocks = turn->blocks;
    attention.n_blocks = turn->n_blocks;
    attention.accumulate = step > 0 && cpl_faults_here()->drop_merge == 0;
    round->core->layer->kernels->attention(&attention);
}

cpl_status cpli_round_forward(cpli_round *round, bool traced)
{
    for (int step = 0; step < round->ring->n_groups; step++) {
        CPL_TRY(start_keys(round, step, traced));
        attend(round, step);
        CPL_TRY(finish_keys(round, step, traced));
    }
    return CPL_OK;
}

/* ---- backward ---- */

/* At a later step d_kv starts from 0, also where nothing is added to it but
 * what others made. */
static cpl_status attend_back(const cpli_round *round, int step,
                              cpl_tensor *d_kv)
{
    const cpli_turn *turn = turn_at(round, step);
    int origin = cpli_ring_origin(round->ring, round->ring->group, step);
    if (step > 0) {
        if (step > round->ring->last[origin] && !round->has_room)
            return CPL_OK;
        CPL_TRY(cpl_tensor_fill(d_kv, 0));
        if (turn->n_blocks == 0 && !round->has_room)
            return CPL_OK;
    }
    cpl_attention_backward attention = cpli_core_backward(
        round->core, keys_at(round, step), d_kv, round->workspace);
    attention.forward.blocks = turn->blocks;
    attention.forward.n_blocks = turn->n_blocks;
    attention.forward.accumulate = step > 0;
    round->core->layer->kernels->attention_backward(&attention);
    return CPL_OK;
}

static void add(const cpli_round *round, const cpl_tensor *x, cpl_tensor *y)
{
    round->core->layer->kernels->axpby(
        &(cpl_axpby){.x = x->data,
                     .y = y->data,
                     .n = cpl_tensor_n_elements(x),
                     .alpha = 1,
                     .beta = 1});
}

/* With room rows are added that may not have come: zeros. */
static cpl_status expect(const cpli_round *round, cpl_tensor *rows)
{
    return round->has_room ? cpl_tensor_fill(rows, 0) : CPL_OK;
}

/* One step: what the step before made goes on while this one is computed. */
static cpl_status step_back(const cpli_round *round, int step)
{
    const hop_plans *hop = &round->hops[step];
    cpl_tensor *before = round->mine[(step + 1) % 2];
    cpl_tensor *mine = round->mine[step % 2];
    CPL_TRY(start_keys(round, step, false));
    CPL_TRY(expect(round, round->theirs));
    CPL_TRY(start(hop->gradients, before, round->theirs));
    CPL_TRY(start(hop->home, before, round->home));
    CPL_TRY(attend_back(round, step, mine));
    CPL_TRY(finish_keys(round, step, false));
    CPL_TRY(finish(hop->gradients));
    CPL_TRY(finish(hop->home));
    if (hop->brings_gradients || round->has_room)
        add(round, round->theirs, mine);
    return CPL_OK;
}

cpl_status cpli_round_backward(cpli_round *round)
{
    int n = round->ring->n_groups;
    bool comes_home = round->ring->last[round->ring->group] > 0;
    CPL_TRY(start_keys(round, 0, false));
    CPL_TRY(attend_back(round, 0, round->core->d_kv));
    CPL_TRY(finish_keys(round, 0, false));
    if (n == 1)
        return CPL_OK;
    CPL_TRY(expect(round, round->home));
    for (int step = 1; step < n; step++)
        CPL_TRY(step_back(round, step));
    CPL_TRY(start(round->hops[n].home, round->mine[(n + 1) % 2], round->home));
    CPL_TRY(finish(round->hops[n].home));
    if (comes_home || round->has_room)
        add(round, round->home, round->core->d_kv);
    return CPL_OK;
}

/* ---- the mode ---- */

static cpl_status prepare(cpli_core *core)
{
    const cpli_ring *ring;
    CPL_TRY(cpli_place_ring(core->layer->place, 1, core->window, &ring));
    cpli_round *round;
    CPL_TRY(cpli_round_create(core, ring, &round));
    core->state = round;
    return CPL_OK;
}

static cpl_status forward(cpli_core *core)
{
    return cpli_round_forward(core->state, core->kv->trace != NULL);
}

static cpl_status backward(cpli_core *core)
{
    return cpli_round_backward(core->state);
}

static void release(cpli_core *core)
{
    cpli_round_destroy(core->state);
}

const gqa_mode cpli_gqa_p2p = {
    .name = "p2p",
    .prepare = prepare,
    .forward = forward,
    .backward = backward,
    .release = release,
};
