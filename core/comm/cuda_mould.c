/*
 * cuda_mould.c: moulds, and rehearsals of steps. What a captured graph holds of
 * a step is its launches: which kernels, with which pointers and counts. Of a
 * stack for other sequences that is prepared in the same mould the pointers are
 * the same, and the counts as far as there is room. A rehearsal says whether
 * all is: the step is walked through, nothing is put into the stream, and what
 * would have been is hashed.
 */
#include "cuda_rank.h"

/* The largest that was seen at each turn. */
typedef struct seen_sizes {
    int64_t *sizes;
    int64_t n, next, room;
} seen_sizes;

/* What is the same on all ranks, that exact sizes are, is counted by itself:
 * there it stays the same, whatever comes between on some ranks alone. */
struct cpli_mould {
    cpli_cuda *device;
    cpli_mould_block *blocks; /* by turn */
    int64_t n_blocks, next_block, room_of_blocks;
    seen_sizes rooms, mosts;
    bool is_forgetful; /* there was no memory for a size */
};

/* ---- memory ---- */

static cpl_status make_room(void **array, int64_t n, int64_t *room, size_t size)
{
    int64_t more = cpli_max(2 * *room, 64);
    if (n < *room)
        return CPL_OK;
    CPL_TRY(cpli_realloc(array, (size_t)more, size));
    *room = more;
    return CPL_OK;
}

/* The block of the next turn, which may hold nothing yet. */
static cpl_status next_block(cpli_mould *mould, cpli_mould_block **out)
{
    if (mould->next_block == mould->n_blocks) {
        void *blocks = mould->blocks;
        CPL_TRY(make_room(&blocks, mould->n_blocks, &mould->room_of_blocks,
                          sizeof *mould->blocks));
        mould->blocks = blocks;
        mould->blocks[mould->n_blocks++] = (cpli_mould_block){0};
    }
    *out = &mould->blocks[mould->next_block++];
    return CPL_OK;
}

/* What has outgrown its block gets some more than it needs, so that this does
 * not happen every time. */
static size_t grown(const cpli_mould_block *block, size_t bytes)
{
    return block->memory == NULL ? bytes : bytes + bytes / 4;
}

/* A block that somebody still has is left to him. */
static void leave(cpli_mould *mould, cpli_mould_block *block)
{
    if (block->is_out)
        cpli_cuda_own(mould->device, block->memory, NULL);
    else
        cpli_cuda_give(mould->device, block->memory);
    block->memory = NULL;
}

static cpl_status renew(cpli_mould *mould, cpli_mould_block *block,
                        size_t bytes)
{
    size_t room = grown(block, bytes);
    if (block->memory != NULL)
        leave(mould, block);
    *block = (cpli_mould_block){0};
    CPL_TRY(cpli_cuda_take_new(mould->device, room, &block->memory));
    cpli_cuda_own(mould->device, block->memory, mould);
    block->bytes = room;
    return CPL_OK;
}

cpl_status cpli_mould_take(cpli_mould *mould, size_t bytes, void **out)
{
    cpli_mould_block *block;
    if (mould->device->is_capturing)
        return cpli_cuda_refuse_capture(mould->device, "taking memory");
    if (mould->is_forgetful)
        return cpli_fail(CPL_MEMORY, "mould: out of memory for what it saw");
    CPL_TRY(next_block(mould, &block));
    if (block->memory == NULL || block->is_out || block->bytes < bytes)
        CPL_TRY(renew(mould, block, bytes));
    else
        CPL_TRY(cpli_cuda_zero(mould->device, block->memory, block->bytes));
    block->is_out = true;
    *out = block->memory;
    return CPL_OK;
}

bool cpli_mould_give(cpli_mould *mould, const void *memory)
{
    for (int64_t i = 0; i < mould->n_blocks; i++)
        if (mould->blocks[i].memory == memory && mould->blocks[i].is_out) {
            mould->blocks[i].is_out = false;
            return true;
        }
    return false;
}

/* ---- moulds ---- */

static cpl_status make(cpl_comm *comm, void **out)
{
    cpli_mould *mould;
    if (!cpli_is_direct(comm))
        return cpli_fail(CPL_UNSUPPORTED,
                         "mould: by nccl a capture holds counts, and serves "
                         "the sequences that it was made for alone");
    CPL_TRY(CPL_ALLOC(1, &mould));
    mould->device = cpli_cuda_of(comm);
    *out = mould;
    return CPL_OK;
}

static void drop(cpl_comm *comm, void *handle)
{
    cpli_mould *mould = handle;
    cpli_cuda *device = cpli_cuda_of(comm);
    if (device->mould == mould)
        device->mould = NULL;
    for (int64_t i = 0; i < mould->n_blocks; i++)
        if (mould->blocks[i].memory != NULL)
            leave(mould, &mould->blocks[i]);
    cpli_free(mould->blocks);
    cpli_free(mould->rooms.sizes);
    cpli_free(mould->mosts.sizes);
    cpli_free(mould);
}

static void use(cpl_comm *comm, void *handle, bool anew)
{
    cpli_mould *mould = handle;
    cpli_cuda_of(comm)->mould = mould;
    if (mould != NULL && anew)
        mould->next_block = mould->rooms.next = mould->mosts.next = 0;
}

static bool is_open(const cpl_comm *comm)
{
    return cpli_cuda_of(comm)->mould != NULL;
}

/* Few, since entries of some lists have a state of megabytes each. */
enum { LEAST_ROOM = 4 };

static int64_t rounded(int64_t n)
{
    int64_t power = LEAST_ROOM;
    while (power < n)
        power *= 2;
    return power;
}

/* A mould that cannot remember a size gives no more memory: others would make
 * their loops of another length. */
static int64_t largest(cpli_mould *mould, seen_sizes *seen, int64_t size)
{
    int64_t turn = seen->next++;
    void *sizes = seen->sizes;
    if (turn >= seen->n) {
        if (mould->is_forgetful || make_room(&sizes, turn, &seen->room,
                                             sizeof *seen->sizes) != CPL_OK) {
            mould->is_forgetful = true;
            return size;
        }
        seen->sizes = sizes;
        seen->sizes[turn] = 0;
        seen->n = turn + 1;
    }
    seen->sizes[turn] = cpli_max(seen->sizes[turn], size);
    return seen->sizes[turn];
}

static int64_t room(cpl_comm *comm, int64_t n, bool is_exact)
{
    cpli_mould *mould = cpli_cuda_of(comm)->mould;
    return is_exact ? largest(mould, &mould->mosts, n)
                    : largest(mould, &mould->rooms, rounded(n));
}

/* ---- rehearsals ---- */

bool cpli_cuda_notes(cpli_cuda *device, const char *what, const void *words,
                     size_t bytes)
{
    if (!device->is_rehearsing)
        return false;
    device->digest = cpl_hash(device->digest, what, strlen(what));
    device->digest = cpl_hash(device->digest, words, bytes);
    return true;
}

static cpl_status begin_rehearsal(cpl_comm *comm)
{
    cpli_cuda *device = cpli_cuda_of(comm);
    CPL_TRY(cpli_cuda_refuse_capture(device, "a rehearsal"));
    device->is_rehearsing = true;
    device->digest = 0;
    return CPL_OK;
}

static cpl_status end_rehearsal(cpl_comm *comm, uint64_t *digest)
{
    cpli_cuda *device = cpli_cuda_of(comm);
    device->is_rehearsing = false;
    *digest = device->digest;
    return cpli_cuda_check(device, cudaSuccess, "a rehearsal");
}

const cpli_mould_ops cpli_cuda_moulds = {
    .make = make,
    .drop = drop,
    .use = use,
    .is_open = is_open,
    .room = room,
    .begin_rehearsal = begin_rehearsal,
    .end_rehearsal = end_rehearsal,
};
