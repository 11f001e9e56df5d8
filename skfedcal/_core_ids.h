/* Ids of rows as numbers, by a hash table: texts in one buffer, and Python objects.

   The table holds the first row of every id. Rows are looked up in batches, and what the
   next steps read is prefetched. Hashes are not secret: who chooses texts whose hashes meet
   makes the search end early (TOO_MANY), and the caller sorts instead. */

#define BATCH 32
/* About the size of a short text. */
#define OBJECT_SIZE 64
#define FREE_SLOT UINT32_MAX
#define TOO_MANY (-1)
#define NO_ROOM (-2)
/* Depth of recursion of sort_texts, and groups that are sorted by insertion. */
#define DEEPEST 64
#define FEW_TEXTS 16

typedef struct {
    uint32_t tag, code;
    union {
        Py_ssize_t row; /* of texts */
        PyObject *object;
    } known;
} Slot;

/* Texts of `width` bytes each, or from offsets[i] to offsets[i + 1]; or objects. */
typedef struct {
    const char *data;
    const Py_buffer *offsets;
    Py_ssize_t width, rows, down;
} Ids;

typedef struct {
    Slot *slots;
    size_t mask, used;
    Py_ssize_t probes;
} Table;

INLINE const char *text_at(const Ids *ids, Py_ssize_t row, Py_ssize_t *size)
{
    if (!ids->offsets) {
        *size = ids->width;
        return ids->data + row * ids->width;
    }
    const Py_ssize_t start = whole_number(ids->offsets, row);
    *size = whole_number(ids->offsets, row + 1) - start;
    return ids->data + start;
}

INLINE PyObject *object_at(const Ids *ids, Py_ssize_t row)
{
    PyObject *object;
    memcpy(&object, ids->data + row * ids->down, sizeof object);
    return object;
}

static uint32_t mixed(uint64_t bits)
{
    bits ^= bits >> 32;
    bits *= UINT64_C(0xD6E8FEB86659FD93);
    bits ^= bits >> 32;
    bits *= UINT64_C(0xD6E8FEB86659FD93);
    return (uint32_t)(bits >> 32);
}

INLINE uint32_t text_hash(const char *text, Py_ssize_t size)
{
    uint64_t bits = (uint64_t)size, word;
    for (; size >= 8; text += 8, size -= 8) {
        memcpy(&word, text, 8);
        bits = ((bits << 23 | bits >> 41) ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    }
    if (size) {
        word = 0;
        memcpy(&word, text, size);
        bits = ((bits << 23 | bits >> 41) ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    }
    return mixed(bits);
}

INLINE int same_text(const Ids *ids, Py_ssize_t a, Py_ssize_t b)
{
    Py_ssize_t size, other;
    const char *text = text_at(ids, a, &size), *second = text_at(ids, b, &other);
    return size == other && !memcmp(text, second, size);
}

/* Types whose comparison runs no code of the user, which could change the array. */
static int is_plain(PyObject *object)
{
    return object && (PyUnicode_CheckExact(object) || PyLong_CheckExact(object) || PyBytes_CheckExact(object) || PyFloat_CheckExact(object) || PyBool_Check(object));
}

INLINE int same_object(PyObject *own, PyObject *other)
{
    const int text = PyUnicode_CheckExact(own) || PyBytes_CheckExact(own) || PyUnicode_CheckExact(other) || PyBytes_CheckExact(other);
    return Py_IS_TYPE(own, Py_TYPE(other)) || !text ? PyObject_RichCompareBool(own, other, Py_EQ) : 0;
}

static int grow_table(Table *table)
{
    const size_t size = table->slots ? (table->mask + 1) * 4 : 4096;
    Slot *slots = malloc(size * sizeof(Slot));
    if (!slots)
        return 0;
    for (size_t i = 0; i < size; i++)
        slots[i].code = FREE_SLOT;
    for (size_t i = 0; table->slots && i <= table->mask; i++) {
        if (table->slots[i].code == FREE_SLOT)
            continue;
        size_t at = table->slots[i].tag & (size - 1);
        while (slots[at].code != FREE_SLOT)
            at = (at + 1) & (size - 1);
        slots[at] = table->slots[i];
    }
    free(table->slots);
    table->slots = slots;
    table->mask = size - 1;
    return 1;
}

/* Number of the id of a row; a new one is noted in `first`. Negative if there is none. */
INLINE int64_t look_up(Table *table, const Ids *ids, int objects, uint32_t tag, Py_ssize_t row, int64_t *first)
{
    size_t at = tag & table->mask;
    for (; table->slots[at].code != FREE_SLOT; at = (at + 1) & table->mask) {
        const Slot *slot = &table->slots[at];
        if (slot->tag == tag && (objects ? same_object(slot->known.object, object_at(ids, row)) == 1 : same_text(ids, slot->known.row, row)))
            return slot->code;
        if (++table->probes > 8 * ids->rows + 4096)
            return TOO_MANY;
    }
    const uint32_t code = (uint32_t)table->used++;
    table->slots[at] = (Slot){.tag = tag, .code = code, .known.row = row};
    if (objects)
        table->slots[at].known.object = object_at(ids, row);
    first[code] = row;
    if (2 * table->used > table->mask && !grow_table(table))
        return NO_ROOM;
    return code;
}

/* Numbers of ids in the order of their first rows; returns how many there are. */
INLINE int64_t number_rows(const Ids *ids, int objects, int64_t *codes, int64_t *first)
{
    Table table = {.slots = NULL};
    uint32_t tags[BATCH];
    char same[BATCH];
    int64_t code = 0;
    if (!grow_table(&table))
        return NO_ROOM;
    for (Py_ssize_t start = 0; start < ids->rows && code >= 0; start += BATCH) {
        const int size = ids->rows - start < BATCH ? (int)(ids->rows - start) : BATCH;
        for (int l = 0; l < size; l++) {
            const Py_ssize_t i = start + l;
            Py_ssize_t length = 0;
            if (objects) {
                PyObject *const own = object_at(ids, i);
                if (i + BATCH < ids->rows) {
                    __builtin_prefetch(object_at(ids, i + BATCH));
                    __builtin_prefetch((const char *)object_at(ids, i + BATCH) + OBJECT_SIZE - 1);
                }
                if ((same[l] = i && own == object_at(ids, i - 1)))
                    continue;
                const Py_hash_t hash = is_plain(own) ? PyObject_Hash(own) : -1;
                if (hash == -1) {
                    free(table.slots);
                    return TOO_MANY;
                }
                tags[l] = mixed((uint64_t)hash);
            }
            else {
                if ((same[l] = i && same_text(ids, i, i - 1)))
                    continue;
                const char *const text = text_at(ids, i, &length);
                tags[l] = text_hash(text, length);
            }
            __builtin_prefetch(&table.slots[tags[l] & table.mask]);
        }
        for (int l = 0; l < size; l++) {
            const Slot *slot = &table.slots[tags[l] & table.mask];
            Py_ssize_t length;
            if (same[l] || slot->code == FREE_SLOT)
                continue;
            const char *const known = objects ? (const char *)slot->known.object : text_at(ids, slot->known.row, &length);
            __builtin_prefetch(known);
            __builtin_prefetch(known + (objects ? OBJECT_SIZE : length) - 1);
        }
        for (int l = 0; l < size && code >= 0; l++) {
            if (!same[l])
                code = look_up(&table, ids, objects, tags[l], start + l, first);
            codes[start + l] = code;
        }
    }
    free(table.slots);
    return code < 0 ? code : (int64_t)table.used;
}

/* Sorts texts by up to eight letters at once. */
typedef struct {
    uint64_t key;
    int64_t at;
} Item;

typedef struct {
    Ids ids;
    const int64_t *first;
    Item *spare;
    int unit, bits; /* bytes of a letter, and bits of it in a key */
} Letters;

INLINE uint32_t letter(const Letters *l, const char *text, Py_ssize_t i)
{
    uint32_t wide;
    if (l->unit == 1)
        return (uint8_t)text[i];
    memcpy(&wide, text + 4 * i, 4);
    return wide;
}

static uint64_t key_at(const Letters *l, int64_t at, Py_ssize_t depth, Py_ssize_t *size)
{
    uint64_t key = 0;
    const char *const text = text_at(&l->ids, l->first[at], size);
    *size /= l->unit;
    for (int k = 0; k < 64 / l->bits; k++)
        key = key << l->bits | (depth + k < *size ? letter(l, text, depth + k) : 0);
    return key;
}

static int text_before(const Letters *l, int64_t a, int64_t b, Py_ssize_t depth)
{
    Py_ssize_t size, other;
    const char *const text = text_at(&l->ids, l->first[a], &size), *const second = text_at(&l->ids, l->first[b], &other);
    size /= l->unit;
    other /= l->unit;
    for (Py_ssize_t i = depth; i < size && i < other; i++) {
        const uint32_t own = letter(l, text, i), its = letter(l, second, i);
        if (own != its)
            return own < its;
    }
    return size < other;
}

/* Sorts by key, one byte after the other from the last. */
static void sort_keys(Item *items, Item *spare, Py_ssize_t n, uint64_t varies)
{
    Item *from = items, *to = spare;
    for (int shift = 0; shift < 64; shift += 8) {
        if (!(varies >> shift & 255))
            continue;
        Py_ssize_t starts[257] = {0};
        for (Py_ssize_t i = 0; i < n; i++)
            starts[(from[i].key >> shift & 255) + 1]++;
        for (int b = 0; b < 256; b++)
            starts[b + 1] += starts[b];
        for (Py_ssize_t i = 0; i < n; i++)
            to[starts[from[i].key >> shift & 255]++] = from[i];
        Item *const swap = from;
        from = to;
        to = swap;
    }
    if (from != items)
        memcpy(items, from, n * sizeof(Item));
}

/* Sorts texts that agree before `depth`; 0 if too many differ late only. */
static int sort_texts(const Letters *l, Item *items, Py_ssize_t n, Py_ssize_t depth, int nested)
{
    uint64_t varies = 0;
    Py_ssize_t longest = 0, size, ordered = 1;
    while (ordered < n && text_before(l, items[ordered - 1].at, items[ordered].at, depth))
        ordered++;
    if (ordered >= n)
        return 1;
    while (n > FEW_TEXTS && !varies) {
        longest = 0;
        for (Py_ssize_t i = 0; i < n; i++) {
            items[i].key = key_at(l, items[i].at, depth, &size);
            varies |= items[i].key ^ items[0].key;
            longest = size > longest ? size : longest;
        }
        if (depth >= longest) /* they differ in length only, by zeros */
            return 0;
        depth += 64 / l->bits;
    }
    if (n <= FEW_TEXTS) {
        for (Py_ssize_t i = 1; i < n; i++) {
            const Item own = items[i];
            Py_ssize_t j = i;
            for (; j && text_before(l, own.at, items[j - 1].at, depth); j--)
                items[j] = items[j - 1];
            items[j] = own;
        }
        return 1;
    }
    sort_keys(items, l->spare, n, varies);
    for (Py_ssize_t i = 0, next; i < n; i = next) {
        for (next = i + 1; next < n && items[next].key == items[i].key;)
            next++;
        if (next - i > 1 && (nested == DEEPEST || !sort_texts(l, items + i, next - i, depth, nested + 1)))
            return 0;
    }
    return 1;
}

/* Checks of arguments that functions of texts share; the row after the last is read too. */
static const char *check_texts(const Ids *ids, const Py_buffer *data)
{
    if (!ids->offsets)
        return ids->width < 1 || data->len != ids->rows * ids->width ? "texts do not fit their width" : NULL;
    for (Py_ssize_t i = 0; i < ids->rows; i++)
        if (whole_number(ids->offsets, i) < 0 || whole_number(ids->offsets, i) > whole_number(ids->offsets, i + 1))
            return "offsets are out of range";
    return whole_number(ids->offsets, ids->rows) > data->len ? "offsets are out of range" : NULL;
}

static int take_texts(Arrays *arrays, Ids *ids, PyObject *const *args)
{
    const Py_buffer *data = take(arrays, args[0], "B", 1, DENSE, "texts");
    if (!data)
        return 0;
    ids->data = data->buf;
    if (PyLong_Check(args[1])) {
        ids->width = PyLong_AsSsize_t(args[1]);
        ids->rows = ids->width > 0 ? data->len / ids->width : 0;
    }
    else if ((ids->offsets = take(arrays, args[1], "ilq", 1, 0, "offsets")))
        ids->rows = length(ids->offsets) - 1;
    if (PyErr_Occurred())
        return 0;
    const char *fault = ids->rows < 0 ? "offsets are empty" : check_texts(ids, data);
    if (fault)
        PyErr_SetString(PyExc_IndexError, fault);
    return !fault;
}

static PyObject *numbered(Arrays *arrays, const Ids *ids, int objects, PyObject *codes, PyObject *first)
{
    const Py_buffer *to, *rows;
    int64_t found = TOO_MANY;
    if ((to = take(arrays, codes, "lq", 1, DENSE | PyBUF_WRITABLE, "codes"))
        && (rows = take(arrays, first, "lq", 1, DENSE | PyBUF_WRITABLE, "first"))) {
        if (length(to) != ids->rows || length(rows) != ids->rows)
            PyErr_SetString(PyExc_IndexError, "arrays do not fit together");
        else if (ids->rows < INT32_MAX) {
            if (objects)
                found = number_rows(ids, 1, to->buf, rows->buf);
            else {
                Py_BEGIN_ALLOW_THREADS
                found = number_rows(ids, 0, to->buf, rows->buf);
                Py_END_ALLOW_THREADS
            }
            if (found == NO_ROOM)
                PyErr_NoMemory();
        }
    }
    PyObject *none = finish(arrays);
    if (!none)
        return NULL;
    Py_DECREF(none);
    return PyLong_FromLongLong(found);
}

/* number_texts(texts, offsets or width, codes, first): how many ids there are, or -1 where
   too many hashes meet. codes gets the number of each row, first the first row of each id. */
static PyObject *number_texts(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    Ids ids = {.offsets = NULL};
    if (expect(n_args, 4) < 0)
        return NULL;
    if (!take_texts(&arrays, &ids, args))
        return finish(&arrays);
    return numbered(&arrays, &ids, 0, args[2], args[3]);
}

/* number_objects(objects, codes, first): the same; -1 also where an object is not of a
   plain type. */
static PyObject *number_objects(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    const Py_buffer *given;
    if (expect(n_args, 3) < 0)
        return NULL;
    if (!(given = take(&arrays, args[0], "O", 1, 0, "objects")))
        return finish(&arrays);
    const Ids ids = {.data = given->buf, .rows = given->shape[0], .down = given->strides[0]};
    return numbered(&arrays, &ids, 1, args[1], args[2]);
}

/* text_order(texts, offsets or width, unit, rows, out): whether out got the order of the
   distinct texts at these rows. A letter has 1 or 4 bytes. */
static PyObject *text_order(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    Letters l = {.bits = 8};
    const Py_buffer *rows, *out;
    int sorted = 0;
    if (expect(n_args, 5) < 0)
        return NULL;
    l.unit = (int)PyLong_AsLong(args[2]);
    if (PyErr_Occurred() || !take_texts(&arrays, &l.ids, args) || !(rows = take(&arrays, args[3], "lq", 1, DENSE, "rows"))
        || !(out = take(&arrays, args[4], "lq", 1, DENSE | PyBUF_WRITABLE, "out")))
        return finish(&arrays);
    const Py_ssize_t n = length(rows);
    int good = length(out) == n && (l.unit == 1 || (l.unit == 4 && l.ids.width % 4 == 0 && !l.ids.offsets));
    l.first = rows->buf;
    for (Py_ssize_t i = 0; i < n && good; i++)
        good = l.first[i] >= 0 && l.first[i] < l.ids.rows;
    Item *items = malloc((2 * n + 1) * sizeof(Item));
    if (!good)
        PyErr_SetString(PyExc_IndexError, "arrays do not fit together");
    else if (!items)
        PyErr_NoMemory();
    else {
        uint32_t letters = 0;
        l.spare = items + n;
        for (Py_ssize_t i = 0; i < n; i++) {
            items[i].at = i;
            for (Py_ssize_t j = 0; l.unit == 4 && j < l.ids.width / 4; j++)
                letters |= letter(&l, l.ids.data + l.first[i] * l.ids.width, j);
        }
        l.bits = letters >> 16 ? 32 : letters >> 8 ? 16 : 8;
        Py_BEGIN_ALLOW_THREADS
        sorted = sort_texts(&l, items, n, 0, 0);
        Py_END_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < n; i++)
            ((int64_t *)out->buf)[i] = items[i].at;
    }
    free(items);
    PyObject *none = finish(&arrays);
    if (!none)
        return NULL;
    Py_DECREF(none);
    return PyBool_FromLong(sorted);
}

/* group_rows(codes, starts, order): rows sorted by code, equal ones in their order. starts
   (n_codes) is where each code begins, and becomes where it ends. */
static PyObject *group_rows(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    const Py_buffer *codes, *starts, *order;
    if (expect(n_args, 3) < 0)
        return NULL;
    if ((codes = take(&arrays, args[0], INTEGERS, 1, 0, "codes"))
        && (starts = take(&arrays, args[1], "lq", 1, DENSE | PyBUF_WRITABLE, "starts"))
        && (order = take(&arrays, args[2], "lq", 1, DENSE | PyBUF_WRITABLE, "order"))) {
        const Py_ssize_t n = length(codes), n_codes = length(starts);
        int64_t *const at = starts->buf, *const out = order->buf;
        int good = length(order) == n;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < n && good; i++) {
            const Py_ssize_t code = whole_number(codes, i);
            if ((good = code >= 0 && code < n_codes && at[code] >= 0 && at[code] < n))
                out[at[code]++] = i;
        }
        Py_END_ALLOW_THREADS
        if (!good)
            PyErr_SetString(PyExc_IndexError, "arrays do not fit together");
    }
    return finish(&arrays);
}
