/* chain.c: see chain.h. */
#include "chain.h"

#include <stdlib.h>

#include "exchange/exchange.h"
#include "trace/trace.h"

/* ---- prepare ---- */

static bool has_prev(const cpl_link *link)
{
    return link->prev_rank >= 0;
}

static bool has_next(const cpl_link *link)
{
    return link->next_rank >= 0;
}

static bool is_head(const cpl_link *link)
{
    return !has_prev(link) && has_next(link);
}

static bool is_middle(const cpl_link *link)
{
    return has_prev(link) && has_next(link);
}

static cpl_status make_subset(const cpli_chain *chain,
                              bool (*member)(const cpl_link *),
                              cpli_subset *subset)
{
    cpli_lists *lists = &chain->layer->lists;
    CPL_TRY(CPLI_LIST_MAKE(lists, chain->place->n_spans, &subset->spans));
    CPL_TRY(CPLI_LIST_MAKE(lists, chain->place->n_spans, &subset->index));
    subset->n = 0;
    for (int64_t i = 0; i < chain->place->n_spans; i++)
        if (member(&chain->place->links[i])) {
            subset->spans[subset->n] = chain->place->spans[i];
            subset->index[subset->n++] = i;
        }
    CPL_TRY(
        CPLI_LIST_SEND(lists, subset->spans, subset->n, &subset->kernel_spans));
    return CPLI_LIST_SEND(lists, subset->index, subset->n,
                          &subset->kernel_index);
}

/* A counting sort: first[hop] runs from where the members of a hop begin to
 * where they end, and is then moved on by one. */
static cpl_status order_by_hop(const cpli_chain *chain, cpli_subset *subset)
{
    cpli_lists *lists = &chain->layer->lists;
    const cpl_link *links = chain->place->links;
    CPL_TRY(CPLI_LIST_MAKE(lists, chain->n_hops + 2, &subset->first));
    CPL_TRY(CPLI_LIST_MAKE(lists, subset->n, &subset->member));
    CPL_TRY(CPLI_LIST_MAKE(lists, subset->n, &subset->span));
    int64_t *first = subset->first;
    for (int64_t i = 0; i < subset->n; i++)
        first[links[subset->index[i]].level + 1]++;
    for (int64_t hop = 0; hop <= chain->n_hops; hop++)
        first[hop + 1] += first[hop];
    for (int64_t i = 0; i < subset->n; i++) {
        int64_t at = first[links[subset->index[i]].level]++;
        subset->member[at] = i;
        subset->span[at] = subset->index[i];
    }
    for (int64_t hop = chain->n_hops + 1; hop > 0; hop--)
        first[hop] = first[hop - 1];
    first[0] = 0;
    CPL_TRY(CPLI_LIST_SEND(lists, subset->member, subset->n,
                           &subset->kernel_member));
    return CPLI_LIST_SEND(lists, subset->span, subset->n, &subset->kernel_span);
}

static cpl_status make_ends(cpli_chain *chain)
{
    const cpli_subset *followers = &chain->followers;
    cpli_lists *lists = &chain->layer->lists;
    int64_t *ends;
    CPL_TRY(CPLI_LIST_MAKE(lists, followers->n, &ends));
    for (int64_t i = 0; i < followers->n; i++) {
        int64_t span = followers->index[i];
        ends[i] = has_next(&chain->place->links[span]) ? -1 : span;
    }
    return CPLI_LIST_SEND(lists, ends, followers->n, &chain->ends);
}

static int compare_segments(const void *a, const void *b)
{
    const cpl_segment *x = a;
    const cpl_segment *y = b;
    if (x->peer != y->peer)
        return x->peer < y->peer ? -1 : 1;
    return x->position < y->position ? -1 : x->position > y->position;
}

/* The states that this rank hands over in `hop` (from level hop - 1 to level
 * hop). A row of the exchange is a span; its position is where the receiving
 * span begins, which both sides know. */
static void hop_segments(const cpli_chain *chain, int64_t hop,
                         cpl_segment *sends, cpl_segment *receives,
                         cpl_route_part *part)
{
    const cpl_stream *stream = cpl_layout_stream(chain->place->layout);
    *part = (cpl_route_part){.sends = sends,
                             .receives = receives,
                             .n_source_rows = chain->place->n_spans,
                             .n_target_rows = chain->place->n_spans};
    for (int64_t i = 0; i < chain->place->n_spans; i++) {
        const cpl_span *span = &chain->place->spans[i];
        const cpl_link *link = &chain->place->links[i];
        int64_t start =
            cpl_stream_sequence(stream, span->sequence).start + span->offset;
        if (link->level == hop && has_prev(link))
            receives[part->n_receives++] =
                (cpl_segment){.peer = link->prev_rank,
                              .position = start,
                              .slot = i,
                              .peer_slot = link->prev_span,
                              .length = 1};
        if (link->level == hop - 1 && has_next(link))
            sends[part->n_sends++] =
                (cpl_segment){.peer = link->next_rank,
                              .position = start + span->length,
                              .slot = i,
                              .peer_slot = link->next_span,
                              .length = 1};
    }
    qsort(sends, (size_t)part->n_sends, sizeof *sends, compare_segments);
    qsort(receives, (size_t)part->n_receives, sizeof *receives,
          compare_segments);
}

static int64_t state_width(const cpli_chain *chain)
{
    return chain->heads * chain->key_dim * chain->value_dim;
}

static cpl_status make_plans(cpli_chain *chain, cpl_segment *sends,
                             cpl_segment *receives)
{
    for (int64_t hop = 1; hop <= chain->n_hops; hop++) {
        cpl_route_part part;
        hop_segments(chain, hop, sends, receives, &part);
        if (part.n_sends + part.n_receives > 0)
            CPL_TRY(cpli_plan_from_parts(&part, chain->place->comm,
                                         chain->layer->wide, state_width(chain),
                                         &chain->plans[hop]));
    }
    return CPL_OK;
}

static cpl_status prepare_hops(cpli_chain *chain)
{
    for (int64_t i = 0; i < chain->place->n_spans; i++) {
        const cpl_link *link = &chain->place->links[i];
        int64_t last = has_next(link) ? link->level + 1 : link->level;
        chain->n_hops = cpli_max(chain->n_hops, last);
    }
    CPL_TRY(CPL_ALLOC(chain->n_hops + 1, &chain->plans));
    cpl_segment *segments;
    CPL_TRY(CPL_ALLOC(2 * chain->place->n_spans, &segments));
    cpl_status status =
        make_plans(chain, segments, segments + chain->place->n_spans);
    cpli_free(segments);
    return status;
}

static size_t summary_workspace(const cpli_chain *chain, const cpl_gdn *gdn)
{
    const cpl_kernels *kernels = chain->layer->kernels;
    cpl_gdn_summary summary = {.gdn = *gdn};
    cpl_gdn_summary_backward backward = {.gdn = *gdn};
    size_t bytes = kernels->gdn_summary_workspace(&summary);
    size_t more = kernels->gdn_summary_backward_workspace(&backward);
    return bytes > more ? bytes : more;
}

static cpl_status prepare_buffers(cpli_chain *chain, const cpl_gdn *gdn)
{
    int64_t n_spans = chain->place->n_spans;
    int64_t state = state_width(chain);
    int64_t square = chain->heads * chain->key_dim * chain->key_dim;
    int64_t n_heads = chain->heads_of_chains.n;
    int64_t n_middles = chain->middles.n;
    const cpli_buffer buffers[] = {
        {&chain->state_in, n_spans, state, CPLI_KEPT | CPLI_WIDE},
        {&chain->state_out, n_spans, state, CPLI_SCRATCH | CPLI_WIDE},
        {&chain->d_state_in, n_spans, state, CPLI_SCRATCH | CPLI_WIDE},
        {&chain->d_state_out, n_spans, state, CPLI_SCRATCH | CPLI_WIDE},
        {&chain->transition, n_middles, square, CPLI_KEPT | CPLI_WIDE},
        {&chain->head_offset, n_heads, state, CPLI_SCRATCH | CPLI_WIDE},
        {&chain->middle_offset, n_middles, state, CPLI_SCRATCH | CPLI_WIDE},
        {&chain->back_offset, chain->followers.n, state,
         CPLI_SCRATCH | CPLI_WIDE},
    };
    CPL_TRY(cpli_layer_buffers(chain->layer, buffers,
                               sizeof buffers / sizeof *buffers));
    return cpli_place_scratch(chain->layer->place,
                              summary_workspace(chain, gdn), &chain->workspace);
}

cpl_status cpli_chain_prepare(cpli_chain *chain, cpl_layer *layer,
                              const cpl_gdn *gdn)
{
    *chain = (cpli_chain){.layer = layer,
                          .place = layer->place,
                          .heads = gdn->value_heads,
                          .key_dim = gdn->key_dim,
                          .value_dim = gdn->value_dim};
    CPL_TRY(make_subset(chain, is_head, &chain->heads_of_chains));
    CPL_TRY(make_subset(chain, is_middle, &chain->middles));
    CPL_TRY(make_subset(chain, has_prev, &chain->followers));
    CPL_TRY(prepare_hops(chain));
    CPL_TRY(order_by_hop(chain, &chain->middles));
    CPL_TRY(order_by_hop(chain, &chain->followers));
    CPL_TRY(make_ends(chain));
    return prepare_buffers(chain, gdn);
}

void cpli_chain_release(cpli_chain *chain)
{
    for (int64_t i = 0; chain->plans != NULL && i <= chain->n_hops; i++)
        cpl_plan_destroy(chain->plans[i]);
    cpli_free(chain->plans);
    *chain = (cpli_chain){0};
}

/* ---- execution ---- */

static void *state_of(const cpli_chain *chain, const cpl_tensor *states,
                      int64_t i)
{
    return cpli_at_wide(chain->layer, states->data, i * state_width(chain));
}

/* State to[i] of `y` becomes state from[i] of `x`; NULL: i itself. */
static void copy_states(const cpli_chain *chain, int64_t n, const cpl_tensor *x,
                        const int64_t *from, const cpl_tensor *y,
                        const int64_t *to)
{
    if (n > 0)
        cpli_move_wide_rows(chain->layer, n, state_width(chain), x->data, from,
                            y->data, to);
}

/* out = M in + out, all heads at once (M' in the backward). States are wide,
 * and the kernels of the wide dtype multiply them. */
static void apply_transition(const cpli_chain *chain, int64_t middle,
                             bool transpose, const void *in, void *out)
{
    const cpl_layer *layer = chain->layer;
    int64_t K = chain->key_dim;
    int64_t V = chain->value_dim;
    layer->wide_kernels->matmul(
        &(cpl_matmul){.a = cpli_at_wide(layer, chain->transition->data,
                                        middle * chain->heads * K * K),
                      .b = in,
                      .c = out,
                      .m = K,
                      .n = V,
                      .k = K,
                      .lda = K,
                      .ldb = V,
                      .ldc = V,
                      .transpose_a = transpose,
                      .alpha = 1,
                      .beta = 1,
                      .batch = chain->heads,
                      .a_step = K * K,
                      .b_step = K * V,
                      .c_step = K * V});
}

static cpl_gdn restrict_to(const cpl_gdn *gdn, const cpli_subset *subset)
{
    cpl_gdn restricted = *gdn;
    restricted.spans = subset->kernel_spans;
    restricted.n_spans = subset->n;
    restricted.state_in = NULL;
    restricted.state_out = NULL;
    return restricted;
}

static void summarise(cpli_chain *chain, const cpl_gdn *gdn,
                      const cpli_subset *subset, const void *state_in,
                      const cpl_tensor *transition, const cpl_tensor *offset)
{
    cpl_gdn_summary summary = {.gdn = restrict_to(gdn, subset),
                               .transition =
                                   transition != NULL ? transition->data : NULL,
                               .offset = offset->data,
                               .workspace = chain->workspace};
    summary.gdn.state_in = state_in;
    if (subset->n > 0)
        chain->layer->kernels->gdn_summary(&summary);
}

/* A chain begins with the state of its first span, where that starts from what
 * it starts from. */
static void begin_chains(cpli_chain *chain, const cpl_gdn *gdn)
{
    const cpli_subset *heads = &chain->heads_of_chains;
    copy_states(chain, heads->n, chain->state_in, heads->kernel_index,
                chain->head_offset, NULL);
    summarise(chain, gdn, heads, chain->head_offset->data, NULL,
              chain->head_offset);
    copy_states(chain, heads->n, chain->head_offset, NULL, chain->state_out,
                heads->kernel_index);
}

/* Runs one hop and counts what it handed to other ranks. */
static cpl_status run_hop(cpli_chain *chain, int64_t hop, bool adjoint)
{
    cpl_plan *plan = chain->plans[hop];
    if (plan == NULL)
        return CPL_OK;
    int64_t before = cpl_counters_here()->sent_bytes;
    if (adjoint)
        CPL_TRY(cpl_plan_start_adjoint(plan, chain->d_state_in,
                                       chain->d_state_out, true));
    else
        CPL_TRY(cpl_plan_start(plan, chain->state_out, chain->state_in));
    CPL_TRY(cpl_plan_finish(plan));
    cpl_counters_here()->state_bytes +=
        cpl_counters_here()->sent_bytes - before;
    return CPL_OK;
}

/* For the members of a subset that have their turn at a hop: their states of x
 * become those of their spans in y. */
static void copy_of_hop(const cpli_chain *chain, const cpli_subset *subset,
                        int64_t hop, const cpl_tensor *x, const cpl_tensor *y)
{
    int64_t first = subset->first[hop];
    copy_states(chain, subset->first[hop + 1] - first, x,
                subset->kernel_member + first, y, subset->kernel_span + first);
}

/* out += M in for the middles of a hop (M' in the backward). */
static void apply_of_hop(const cpli_chain *chain, int64_t hop, bool transpose,
                         const cpl_tensor *in, const cpl_tensor *out)
{
    const cpli_subset *middles = &chain->middles;
    for (int64_t i = middles->first[hop]; i < middles->first[hop + 1]; i++)
        apply_transition(chain, middles->member[i], transpose,
                         state_of(chain, in, middles->span[i]),
                         state_of(chain, out, middles->span[i]));
}

/* A fault: one after the other, each takes the state of the next. */
static void cross(const cpli_chain *chain)
{
    const cpli_subset *followers = &chain->followers;
    for (int64_t i = 0; i + 1 < followers->n; i++)
        copy_states(chain, 1, chain->state_in, followers->kernel_index + i + 1,
                    chain->state_in, followers->kernel_index + i);
}

cpl_status cpli_chain_forward(cpli_chain *chain, const cpl_gdn *gdn)
{
    begin_chains(chain, gdn);
    summarise(chain, gdn, &chain->middles, NULL, chain->transition,
              chain->middle_offset);
    for (int64_t hop = 1; hop <= chain->n_hops; hop++) {
        CPL_TRY(run_hop(chain, hop, false));
        copy_of_hop(chain, &chain->middles, hop, chain->middle_offset,
                    chain->state_out);
        apply_of_hop(chain, hop, false, chain->state_in, chain->state_out);
    }
    if (cpl_faults_here()->drop_handoff != 0)
        CPL_TRY(cpl_tensor_fill(chain->state_in, 0));
    if (cpl_faults_here()->cross_columns != 0)
        cross(chain);
    return CPL_OK;
}

/* b of all followers; a chain ends with the gradient of its last state. */
static void end_chains(cpli_chain *chain, const cpl_gdn *gdn, const void *d_o)
{
    const cpli_subset *followers = &chain->followers;
    copy_states(chain, followers->n, chain->d_state_out, chain->ends,
                chain->back_offset, NULL);
    cpl_gdn_summary_backward summary = {.gdn = restrict_to(gdn, followers),
                                        .d_o = d_o,
                                        .d_state_out = chain->back_offset->data,
                                        .offset = chain->back_offset->data,
                                        .workspace = chain->workspace};
    if (followers->n > 0)
        chain->layer->kernels->gdn_summary_backward(&summary);
}

cpl_status cpli_chain_backward(cpli_chain *chain, const cpl_gdn *gdn,
                               const void *d_o)
{
    end_chains(chain, gdn, d_o);
    for (int64_t hop = chain->n_hops; hop >= 1; hop--) {
        copy_of_hop(chain, &chain->followers, hop, chain->back_offset,
                    chain->d_state_in);
        apply_of_hop(chain, hop, true, chain->d_state_out, chain->d_state_in);
        CPL_TRY(run_hop(chain, hop, true));
    }
    return CPL_OK;
}
