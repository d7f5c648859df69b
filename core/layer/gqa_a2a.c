/*
 * gqa_a2a.c: cp_modes "a2a" and "a2a+p2p". Inside a group of ranks (all of
 * them, or `a2a` consecutive ones) each rank gets the group's rows for its
 * slice of the heads, attends, and sends the results home; between groups the
 * slices go round as in p2p. The gate acts after that, so it never travels.
 *
 * With fewer kv heads than ranks of a group, rank j gets kv head
 * floor(j * kv_heads / ranks): the one that its query heads use. Gradients of
 * the copies are added up in rank order.
 */
#include "gqa.h"
#include "trace/trace.h"

enum { TO_SHARD, TO_RANK, N_WAYS };

/* Rows of one width: a slice of the heads of each. */
typedef struct head_slices {
    cpli_carrier ways[N_WAYS];
    cpl_tensor *packed; /* [a2a * n, width], one slice behind the other */
} head_slices;

typedef struct a2a_state {
    const cpli_ring *ring;
    cpli_core inner; /* the group's rows, a slice of the heads */
    head_slices q, kv, o;
    cpli_round *round;
} a2a_state;

/* ---- prepare ---- */

static cpl_status check_heads(const cpli_core *core, int ranks)
{
    if (core->heads % ranks != 0)
        return cpli_fail(CPL_INVALID,
                         "%s: %lld heads, not a multiple of the %d ranks that "
                         "they are spread over",
                         core->layer->name, (long long)core->heads, ranks);
    if (core->kv_heads % ranks != 0 && ranks % core->kv_heads != 0)
        return cpli_fail(CPL_INVALID,
                         "%s: %lld kv_heads and %d ranks that they are spread "
                         "over: neither is a multiple of the other",
                         core->layer->name, (long long)core->kv_heads, ranks);
    return CPL_OK;
}

static cpl_status make_slices(const cpli_core *core, const cpli_ring *ring,
                              int64_t width, head_slices *out)
{
    const cpl_route_part *to = &ring->part;
    const cpl_route_part back = {.sends = to->receives,
                                 .receives = to->sends,
                                 .n_sends = to->n_receives,
                                 .n_receives = to->n_sends,
                                 .n_source_rows = to->n_target_rows,
                                 .n_target_rows = to->n_source_rows};
    cpl_layer *layer = core->layer;
    cpl_dtype dtype = layer->dtype;
    CPL_TRY(cpli_carrier_create(layer, to, dtype, width, &out->ways[TO_SHARD]));
    CPL_TRY(
        cpli_carrier_create(layer, &back, dtype, width, &out->ways[TO_RANK]));
    const cpli_buffer packed = {&out->packed, ring->a2a * layer->n_rows, width,
                                CPLI_SCRATCH};
    return cpli_layer_buffers(layer, &packed, 1);
}

static void slice_core(const cpli_core *core, const cpli_ring *ring,
                       cpli_core *inner)
{
    *inner = *core;
    inner->heads = core->heads / ring->a2a;
    inner->kv_heads = cpli_max(core->kv_heads / ring->a2a, 1);
    inner->n_rows = ring->n_rows;
    inner->state = NULL;
}

static cpl_status make_buffers(cpli_core *inner)
{
    int64_t n = inner->n_rows;
    int64_t kv = cpli_core_kv_width(inner);
    const cpli_buffer buffers[] = {
        {&inner->q, n, inner->heads * inner->key_dim, CPLI_KEPT},
        {&inner->kv, n, kv, CPLI_KEPT},
        {&inner->o, n, inner->heads * inner->value_dim, CPLI_KEPT},
        {&inner->lse, n, inner->heads, CPLI_KEPT | CPLI_WIDE},
        {&inner->d_o, n, inner->heads * inner->value_dim, CPLI_SCRATCH},
        {&inner->d_q, n, inner->heads * inner->key_dim, CPLI_SCRATCH},
        {&inner->d_kv, n, kv, CPLI_SCRATCH},
    };
    return cpli_layer_buffers(inner->layer, buffers,
                              sizeof buffers / sizeof *buffers);
}

static cpl_status prepare_for(cpli_core *core, int ranks)
{
    a2a_state *state;
    CPL_TRY(check_heads(core, ranks));
    CPL_TRY(CPL_ALLOC(1, &state));
    core->state = state;
    CPL_TRY(
        cpli_place_ring(core->layer->place, ranks, core->window, &state->ring));
    cpli_core *inner = &state->inner;
    slice_core(core, state->ring, inner);
    CPL_TRY(make_buffers(inner));
    CPL_TRY(make_slices(core, state->ring, inner->heads * inner->key_dim,
                        &state->q));
    CPL_TRY(
        make_slices(core, state->ring, cpli_core_kv_width(inner), &state->kv));
    CPL_TRY(make_slices(core, state->ring, inner->heads * inner->value_dim,
                        &state->o));
    return cpli_round_create(inner, state->ring, &state->round);
}

static int n_ranks_of(const cpli_core *core)
{
    return cpl_comm_size(core->layer->place->comm);
}

static cpl_status prepare_a2a(cpli_core *core)
{
    return prepare_for(core, n_ranks_of(core));
}

/* One rank alone spreads nothing: every model has its reference. */
static cpl_status prepare_a2a_p2p(cpli_core *core)
{
    return prepare_for(core, n_ranks_of(core) == 1 ? 1 : core->a2a);
}

static void release(cpli_core *core)
{
    a2a_state *state = core->state;
    if (state == NULL)
        return;
    cpli_round_destroy(state->round);
    head_slices *all[] = {&state->q, &state->kv, &state->o};
    for (int i = 0; i < 3; i++)
        for (int way = 0; way < N_WAYS; way++)
            cpli_carrier_destroy(&all[i]->ways[way]);
    cpli_free(state);
}

/* ---- packing ---- */

/* The rank's rows: `to` becomes `from`, or gets it added. */
static void move(const cpli_core *core, int64_t width, cpli_columns from,
                 cpli_columns to, bool add)
{
    cpli_move_columns(core->layer, core->n_rows, width, from, to, add);
}

/* Columns of the slice for one rank of the group. */
static cpli_columns slice_of(const cpli_core *core, const head_slices *slices,
                             int rank, int64_t column)
{
    return cpli_columns_of(slices->packed, rank * core->n_rows, column);
}

static void pack(const cpli_core *core, const cpl_tensor *rows,
                 const head_slices *slices)
{
    const a2a_state *state = core->state;
    int64_t width = cpl_tensor_width(slices->packed);
    for (int i = 0; i < state->ring->a2a; i++)
        move(core, width, cpli_columns_of(rows, 0, i * width),
             slice_of(core, slices, i, 0), false);
}

static void unpack(const cpli_core *core, const head_slices *slices,
                   const cpl_tensor *rows)
{
    const a2a_state *state = core->state;
    int64_t width = cpl_tensor_width(slices->packed);
    for (int i = 0; i < state->ring->a2a; i++)
        move(core, width, slice_of(core, slices, i, 0),
             cpli_columns_of(rows, 0, i * width), false);
}

/* The keys, or the values, of the kv heads of one rank: in a row of all heads,
 * and in that rank's slice. */
static cpli_columns kv_columns(const cpli_core *core, const cpl_tensor *kv,
                               int rank, bool is_value)
{
    const a2a_state *state = core->state;
    int64_t dim = is_value ? core->value_dim : core->key_dim;
    int64_t first = rank * core->kv_heads / state->ring->a2a;
    first = (first + cpl_faults_here()->kv_head_shift) % core->kv_heads;
    return cpli_columns_of(
        kv, 0, first * dim + (is_value ? core->kv_heads * core->key_dim : 0));
}

static cpli_columns kv_slice(const cpli_core *core, int rank, bool is_value)
{
    const a2a_state *state = core->state;
    return slice_of(core, &state->kv, rank,
                    is_value ? state->inner.kv_heads * core->key_dim : 0);
}

/* Of both. */
static int64_t kv_width(const cpli_core *core, bool is_value)
{
    const a2a_state *state = core->state;
    return state->inner.kv_heads * (is_value ? core->value_dim : core->key_dim);
}

static int n_parts(const cpli_core *core)
{
    return core->values_in_keys ? 1 : 2;
}

static void pack_kv(const cpli_core *core)
{
    const a2a_state *state = core->state;
    for (int i = 0; i < state->ring->a2a; i++)
        for (int part = 0; part < n_parts(core); part++)
            move(core, kv_width(core, part == 1),
                 kv_columns(core, core->kv, i, part == 1),
                 kv_slice(core, i, part == 1), false);
}

/* Ranks whose kv heads others have too come one after the other. */
static void unpack_kv(const cpli_core *core)
{
    const a2a_state *state = core->state;
    int ranks = state->ring->a2a;
    int64_t copies = cpli_max(ranks / core->kv_heads, 1);
    for (int i = 0; i < ranks; i++)
        for (int part = 0; part < n_parts(core); part++)
            move(core, kv_width(core, part == 1), kv_slice(core, i, part == 1),
                 kv_columns(core, core->d_kv, i, part == 1), i % copies != 0);
}

/* ---- forward and backward ---- */

/* Packed slices on their way to the shard's rows; every slice of a row stands
 * at the row's position. */
static cpl_status spread(const cpli_core *core, head_slices *slices,
                         cpl_tensor *rows)
{
    bool traced = core->kv->trace != NULL;
    if (traced)
        CPL_TRY(cpli_repeat_trace(slices->packed, core->kv));
    return cpli_carrier_start(&slices->ways[TO_SHARD], slices->packed, rows,
                              traced);
}

static cpl_status arrive(const cpli_core *core, head_slices *slices,
                         const cpl_tensor *rows)
{
    const a2a_state *state = core->state;
    CPL_TRY(cpli_carrier_finish(&slices->ways[TO_SHARD]));
    if (core->kv->trace == NULL || rows->trace == NULL)
        return CPL_OK;
    return cpli_ring_check(core->layer, state->ring, state->ring->group, rows);
}

static cpl_status send_home(head_slices *slices, const cpl_tensor *rows,
                            bool traced)
{
    cpli_carrier *way = &slices->ways[TO_RANK];
    CPL_TRY(cpli_carrier_start(way, rows, slices->packed, traced));
    return cpli_carrier_finish(way);
}

/* What came home must stand where it came from, slice by slice. */
static cpl_status check_home(const cpli_core *core, const head_slices *slices)
{
    const a2a_state *state = core->state;
    const cpl_place *place = core->layer->place;
    cpl_tensor slice = *core->o;
    slice.layout = 0;
    for (int i = 0; i < state->ring->a2a && core->n_rows > 0; i++) {
        slice.trace = slices->packed->trace + i * core->n_rows;
        CPL_TRY(cpl_trace_check(&slice, place->layout, place->rank,
                                core->layer->name));
    }
    return CPL_OK;
}

static cpl_status bring_result(cpli_core *core)
{
    a2a_state *state = core->state;
    bool traced = core->kv->trace != NULL;
    if (traced)
        CPL_TRY(cpl_tensor_mark_like(state->inner.o, state->inner.q));
    CPL_TRY(send_home(&state->o, state->inner.o, traced));
    if (traced)
        CPL_TRY(check_home(core, &state->o));
    unpack(core, &state->o, core->o);
    return CPL_OK;
}

/* Keys are packed while queries travel. */
static cpl_status forward(cpli_core *core)
{
    a2a_state *state = core->state;
    cpli_core *inner = &state->inner;
    pack(core, core->q, &state->q);
    CPL_TRY(spread(core, &state->q, inner->q));
    pack_kv(core);
    CPL_TRY(spread(core, &state->kv, inner->kv));
    CPL_TRY(arrive(core, &state->q, inner->q));
    CPL_TRY(arrive(core, &state->kv, inner->kv));
    CPL_TRY(cpli_round_forward(state->round, core->kv->trace != NULL));
    return bring_result(core);
}

static cpl_status backward(cpli_core *core)
{
    a2a_state *state = core->state;
    cpli_core *inner = &state->inner;
    cpli_carrier *gradients = &state->o.ways[TO_SHARD];
    pack(core, core->d_o, &state->o);
    CPL_TRY(cpli_carrier_start(gradients, state->o.packed, inner->d_o, false));
    CPL_TRY(cpli_carrier_finish(gradients));
    CPL_TRY(cpli_round_backward(state->round));
    CPL_TRY(send_home(&state->q, inner->d_q, false));
    unpack(core, &state->q, core->d_q);
    CPL_TRY(send_home(&state->kv, inner->d_kv, false));
    unpack_kv(core);
    return CPL_OK;
}

const gqa_mode cpli_gqa_a2a = {
    .name = "a2a",
    .prepare = prepare_a2a,
    .forward = forward,
    .backward = backward,
    .release = release,
};

const gqa_mode cpli_gqa_a2a_p2p = {
    .name = "a2a+p2p",
    .prepare = prepare_a2a_p2p,
    .forward = forward,
    .backward = backward,
    .release = release,
};
