/* The compiled core with a make-believe interpreter, for benchmarks/core_on_arm.py.

   `call` runs one function of the module on numbers and arrays that the emulator has put
   into memory. What the core needs of Python is below; nothing here computes. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Numbers have no type here. */
static int is_number(PyObject *object);
#undef PyFloat_Check
#define PyFloat_Check(object) is_number(object)

#include "../skfedcal/_core.c"

/* One argument: None, a number or an array; core_on_arm.py writes the same layout. */
typedef struct {
    int64_t kind, whole;
    double real;
    char *data;
    int64_t itemsize, ndim, shape[3], strides[3];
    char format[8];
} Given;

enum { NOTHING, WHOLE, REAL_NUMBER, ARRAY };

typedef struct {
    PyObject head;
    const Given *given;
} Wrapped;

PyObject _Py_NoneStruct;
static PyObject error_type;
PyObject *PyExc_TypeError = &error_type, *PyExc_ValueError = &error_type, *PyExc_IndexError = &error_type;
static const char *error;

static const Given *given_of(PyObject *object) { return ((Wrapped *)object)->given; }
static int is_number(PyObject *object) { return object != &_Py_NoneStruct && given_of(object)->kind != ARRAY; }
long PyLong_AsLong(PyObject *object) { return (long)given_of(object)->whole; }
long long PyLong_AsLongLong(PyObject *object) { return given_of(object)->whole; }
unsigned long long PyLong_AsUnsignedLongLong(PyObject *object) { return (unsigned long long)given_of(object)->whole; }
Py_ssize_t PyLong_AsSsize_t(PyObject *object) { return given_of(object)->whole; }
int PyObject_IsTrue(PyObject *object) { return given_of(object)->whole != 0; }

double PyFloat_AsDouble(PyObject *object)
{
    const Given *given = given_of(object);
    return given->kind == WHOLE ? (double)given->whole : given->real;
}

/* What the function returned, if not None. */
extern int64_t answer;
int64_t answer;
PyObject *PyBool_FromLong(long value) { return answer = value, &_Py_NoneStruct; }

int PyObject_GetBuffer(PyObject *object, Py_buffer *view, int flags)
{
    Given *given = (Given *)given_of(object);
    (void)flags;
    if (given->kind != ARRAY) {
        error = "an array was expected";
        return -1;
    }
    *view = (Py_buffer){.buf = given->data, .itemsize = given->itemsize, .ndim = (int)given->ndim, .format = given->format};
    view->shape = (Py_ssize_t *)given->shape;
    view->strides = (Py_ssize_t *)given->strides;
    view->len = given->itemsize;
    for (int i = 0; i < view->ndim; i++)
        view->len *= given->shape[i];
    return 0;
}

void PyBuffer_Release(Py_buffer *view) { (void)view; }
PyObject *PyErr_Occurred(void) { return error ? &error_type : NULL; }
void PyErr_SetString(PyObject *type, const char *text) { (void)type, error = text; }
PyObject *PyErr_NoMemory(void) { return error = "no memory", NULL; }
PyThreadState *PyEval_SaveThread(void) { return NULL; }
void PyEval_RestoreThread(PyThreadState *state) { (void)state; }
#undef Py_NewRef
PyObject *Py_NewRef(PyObject *object) { return object; }

PyObject *PyErr_Format(PyObject *type, const char *format, ...)
{
    PyErr_SetString(type, format);
    return NULL;
}

/* Memory of one call, given back by the next. */
extern char *heap;
char *heap;
static char *heap_at;

void *malloc(size_t size)
{
    char *out = heap_at;
    heap_at += (size + 63) / 64 * 64;
    return out;
}

void *calloc(size_t n, size_t size) { return memset(malloc(n * size), 0, n * size); }
void free(void *memory) { (void)memory; }

/* Returns the text of an error, or NULL. */
const char *call(const char *name, const Given *given, int64_t n)
{
    typedef PyObject *(*Function)(PyObject *, PyObject *const *, Py_ssize_t);
    static Wrapped wrapped[16];
    PyObject *args[16];
    heap_at = heap;
    error = NULL;
    answer = 0;
    for (int64_t i = 0; i < n && i < 16; i++) {
        wrapped[i].given = given + i;
        args[i] = given[i].kind == NOTHING ? &_Py_NoneStruct : &wrapped[i].head;
    }
    for (const PyMethodDef *method = METHODS; method->ml_name; method++)
        if (!strcmp(method->ml_name, name)) {
            ((Function)(void (*)(void))method->ml_meth)(NULL, args, n);
            return error;
        }
    return "no such function";
}
