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

/* Behind a list of numbers that has room. */
static const int64_t nowhere = -1;

/* What kernels find beyond the members are spans without rows, and no index.
 * Where no rank has a hop there are no members, and none are made room for. */
static cpl_status make_subset(const cpli_chain *chain,
                              bool (*member)(const cpl_link *),
                              cpli_subset *subset)
{
    const cpl_place *place = chain->place;
    cpli_lists *lists = &chain->layer->lists;
    const cpl_span empty = {.slot = place->n_rows};
    cpl_span *spans;
    CPL_TRY(CPLI_LIST_MAKE(lists, place->n_spans, &spans));
    CPL_TRY(CPLI_LIST_MAKE(lists, place->n_spans, &subset->index));
    subset->n = 0;
    for (int64_t i = 0; i < place->n_spans; i++)
        if (member(&place->links[i])) {
            spans[subset->n] = place->spans[i];
            subset->index[subset->n++] = i;
        }
    int64_t room = cpli_room(place->memory, subset->n);
    subset->room = chain->n_hops > 0 ? room : 0;
    /* So what has room for all spans has it for these. */
    CPL_ASSERT(subset->room <= place->n_kernel_spans);
    CPL_TRY(CPLI_LIST_PAD(lists, spans, subset->n, subset->room, &empty,
                          &subset->kernel_spans));
    return CPLI_LIST_PAD(lists, subset->index, subset->n, subset->room,
                         &nowhere, &subset->kernel_index);
}

/* Sets first[hop] to where the members of a hop have their place, for hops up
 * to n_hops + 1: one hop behind the other, or with room all hops alike. */
static void place_hops(const cpli_chain *chain, const cpli_subset *subset,
                       int64_t *first)
{
    const cpl_place *place = chain->place;
    int64_t most = 0;
    for (int64_t i = 0; i < subset->n; i++) {
        int64_t hop = place->links[subset->index[i]].level;
        most = cpli_max(most, ++first[hop + 1]);
    }
    most = cpli_room(place->memory, most);
    for (int64_t hop = 1; hop <= chain->n_hops; hop++)
        first[hop + 1] =
            first[hop] + (cpli_has_room(place->memory) ? most : first[hop + 1]);
}

/* The members in the order of their hops. A middle's transition has the number
 * that it has among the middles, which are in the order of spans, too. */
static cpl_status make_turns(const cpli_chain *chain, const cpli_subset *subset,
                             cpli_turns *turns)
{
    cpli_lists *lists = &chain->layer->lists;
    int64_t *next, *span, *transition_of, *offset_of;
    CPL_TRY(CPLI_LIST_MAKE(lists, chain->n_hops + 2, &turns->first));
    CPL_TRY(CPLI_LIST_MAKE(lists, chain->n_hops + 2, &next));
    place_hops(chain, subset, turns->first);
    memcpy(next, turns->first, (size_t)(chain->n_hops + 2) * sizeof *next);
    int64_t n = turns->first[chain->n_hops + 1];
    CPL_TRY(CPLI_LIST_MAKE(lists, n, &span));
    CPL_TRY(CPLI_LIST_MAKE(lists, n, &transition_of));
    CPL_TRY(CPLI_LIST_MAKE(lists, n, &offset_of));
    for (int64_t i = 0; i < n; i++)
        span[i] = nowhere;
    for (int64_t i = 0, middle = 0; i < subset->n; i++) {
        const cpl_link *link = &chain->place->links[subset->index[i]];
        int64_t at = next[link->level]++;
        span[at] = subset->index[i];
        transition_of[at] = is_middle(link) ? middle++ : -1;
        offset_of[at] = i;
    }
    CPL_TRY(CPLI_LIST_SEND(lists, span, n, &turns->span));
    CPL_TRY(CPLI_LIST_SEND(lists, transition_of, n, &turns->transition_of));
    return CPLI_LIST_SEND(lists, offset_of, n, &turns->offset_of);
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
    return CPLI_LIST_PAD(lists, ends, followers->n, followers->room, &nowhere,
                         &chain->ends);
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
                             .n_source_rows = chain->place->n_kernel_spans,
                             .n_target_rows = chain->place->n_kernel_spans};
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

/* With room every rank has a plan for every hop, of nothing where it has no
 * part. */
static cpl_status make_plans(cpli_chain *chain, cpl_segment *sends,
                             cpl_segment *receives)
{
    const cpl_place *place = chain->place;
    for (int64_t hop = 1; hop <= chain->n_hops; hop++) {
        cpl_route_part part;
        hop_segments(chain, hop, sends, receives, &part);
        if (part.n_sends + part.n_receives > 0 || cpli_has_room(place->memory))
            CPL_TRY(cpli_plan_from_parts(&part, place->comm, chain->layer->wide,
                                         state_width(chain),
                                         &chain->plans[hop]));
    }
    return CPL_OK;
}

static int64_t own_hops(const cpl_place *place)
{
    int64_t n = 0;
    for (int64_t i = 0; i < place->n_spans; i++) {
        const cpl_link *link = &place->links[i];
        n = cpli_max(n, has_next(link) ? link->level + 1 : link->level);
    }
    return n;
}

static cpl_status most_hops(const cpl_place *place, int64_t *out)
{
    cpl_hop *hops;
    int64_t n;
    CPL_TRY(cpl_layout_hops(place->layout, &hops, &n));
    *out = cpli_most(place->memory, n > 0 ? hops[n - 1].level : 0);
    cpl_free(hops);
    return CPL_OK;
}

static cpl_status prepare_hops(cpli_chain *chain)
{
    const cpl_place *place = chain->place;
    chain->n_hops = own_hops(place);
    if (cpli_has_room(place->memory))
        CPL_TRY(most_hops(place, &chain->n_hops));
    CPL_TRY(CPL_ALLOC(chain->n_hops + 1, &chain->plans));
    cpl_segment *segments;
    CPL_TRY(CPL_ALLOC(2 * place->n_spans, &segments));
    cpl_status status = make_plans(chain, segments, segments + place->n_spans);
    cpli_free(segments);
    return status;
}

/* Of any of the subsets. */
static size_t summary_workspace(const cpli_chain *chain, const cpl_gdn *gdn)
{
    const cpl_kernels *kernels = chain->layer->kernels;
    cpl_gdn_summary summary = {.gdn = *gdn};
    summary.gdn.n_spans = chain->place->n_kernel_spans;
    cpl_gdn_summary_backward backward = {.gdn = summary.gdn};
    size_t bytes = kernels->gdn_summary_workspace(&summary);
    size_t more = kernels->gdn_summary_backward_workspace(&backward);
    return bytes > more ? bytes : more;
}

static cpl_status prepare_buffers(cpli_chain *chain, const cpl_gdn *gdn)
{
    int64_t n_spans = chain->place->n_kernel_spans;
    int64_t state = state_width(chain);
    int64_t square = chain->heads * chain->key_dim * chain->key_dim;
    int64_t n_heads = chain->heads_of_chains.room;
    int64_t n_middles = chain->middles.room;
    const cpli_buffer buffers[] = {
        {&chain->state_in, n_spans, state, CPLI_KEPT | CPLI_WIDE},
        {&chain->state_out, n_spans, state, CPLI_SCRATCH | CPLI_WIDE},
        {&chain->d_state_in, n_spans, state, CPLI_SCRATCH | CPLI_WIDE},
        {&chain->d_state_out, n_spans, state, CPLI_SCRATCH | CPLI_WIDE},
        {&chain->transition, n_middles, square, CPLI_KEPT | CPLI_WIDE},
        {&chain->head_offset, n_heads, state, CPLI_SCRATCH | CPLI_WIDE},
        {&chain->middle_offset, n_middles, state, CPLI_SCRATCH | CPLI_WIDE},
        {&chain->back_offset, chain->followers.room, state,
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
    CPL_TRY(prepare_hops(chain));
    CPL_TRY(make_subset(chain, is_head, &chain->heads_of_chains));
    CPL_TRY(make_subset(chain, is_middle, &chain->middles));
    CPL_TRY(make_subset(chain, has_prev, &chain->followers));
    CPL_TRY(make_turns(chain, &chain->middles, &chain->middle_turns));
    CPL_TRY(make_turns(chain, &chain->followers, &chain->follower_turns));
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

/* State to[i] of `y` becomes state from[i] of `x`; NULL: i itself. */
static void copy_states(const cpli_chain *chain, int64_t n, const cpl_tensor *x,
                        const int64_t *from, const cpl_tensor *y,
                        const int64_t *to)
{
    if (n > 0)
        cpli_move_wide_rows(chain->layer, n, state_width(chain), x->data, from,
                            y->data, to);
}

static cpl_gdn restrict_to(const cpl_gdn *gdn, const cpli_subset *subset)
{
    cpl_gdn restricted = *gdn;
    restricted.spans = subset->kernel_spans;
    restricted.n_spans = subset->room;
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
    if (subset->room > 0)
        chain->layer->kernels->gdn_summary(&summary);
}

/* A chain begins with the state of its first span, where that starts from what
 * it starts from. */
static void begin_chains(cpli_chain *chain, const cpl_gdn *gdn)
{
    const cpli_subset *heads = &chain->heads_of_chains;
    copy_states(chain, heads->room, chain->state_in, heads->kernel_index,
                chain->head_offset, NULL);
    summarise(chain, gdn, heads, chain->head_offset->data, NULL,
              chain->head_offset);
    copy_states(chain, heads->room, chain->head_offset, NULL, chain->state_out,
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

/* The members that have their turn at a hop hand on what they got: M in + B, or
 * in the backward M' in + b. */
static void carry(const cpli_chain *chain, int64_t hop, const cpli_turns *turns,
                  const cpl_gdn_carry *states)
{
    cpl_gdn_carry of_hop = *states;
    int64_t first = turns->first[hop];
    of_hop.transition = chain->transition->data;
    of_hop.span = turns->span + first;
    of_hop.transition_of = turns->transition_of + first;
    of_hop.offset_of = turns->offset_of + first;
    of_hop.n = turns->first[hop + 1] - first;
    of_hop.heads = chain->heads;
    of_hop.key_dim = chain->key_dim;
    of_hop.value_dim = chain->value_dim;
    if (of_hop.n > 0)
        chain->layer->wide_kernels->gdn_carry(&of_hop);
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
    const cpl_gdn_carry states = {.in = chain->state_in->data,
                                  .offset = chain->middle_offset->data,
                                  .out = chain->state_out->data};
    for (int64_t hop = 1; hop <= chain->n_hops; hop++) {
        CPL_TRY(run_hop(chain, hop, false));
        if (hop < chain->n_hops) /* at the last one all chains have ended */
            carry(chain, hop, &chain->middle_turns, &states);
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
    copy_states(chain, followers->room, chain->d_state_out, chain->ends,
                chain->back_offset, NULL);
    cpl_gdn_summary_backward summary = {.gdn = restrict_to(gdn, followers),
                                        .d_o = d_o,
                                        .d_state_out = chain->back_offset->data,
                                        .offset = chain->back_offset->data,
                                        .workspace = chain->workspace};
    if (followers->room > 0)
        chain->layer->kernels->gdn_summary_backward(&summary);
}

cpl_status cpli_chain_backward(cpli_chain *chain, const cpl_gdn *gdn,
                               const void *d_o)
{
    end_chains(chain, gdn, d_o);
    const cpl_gdn_carry states = {.in = chain->d_state_out->data,
                                  .offset = chain->back_offset->data,
                                  .out = chain->d_state_in->data,
                                  .transpose = true};
    for (int64_t hop = chain->n_hops; hop >= 1; hop--) {
        carry(chain, hop, &chain->follower_turns, &states);
        CPL_TRY(run_hop(chain, hop, true));
    }
    return CPL_OK;
}
