// Ids as a JSON array, where the package is compiled (setup.py); elsewhere orjson writes them, which takes four times as
// long and holds the interpreter meanwhile.
//
//     ids, packed       0D 00 00 00  |  39 30 00 00
//     with all digits   000013,      |  012345,          seven bytes of a register, the first digit in the lowest one
//     without zeros     13,          |  12345,           shifted by the zeros in front
//     text              [13,12345]

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if PY_BIG_ENDIAN
#error "zeros are shifted out of the lowest byte first"
#endif

enum {
    THOUSAND = 1000,
    MILLION = 1000000,
    MOST_BYTES = 11,   // of an id: ten digits and a comma
    SPARE_BYTES = 8,   // eight bytes are stored for each id, however few of them count
    LONG_IDS = 16384,  // so many take 30 us or more, in which other threads may have the interpreter
};
static const uint64_t AS_TEXT = 0x002c303030303030;  // "000000,"

static uint64_t three_digits[THOUSAND];  // of each number, the first one in the lowest byte

// A number below a million with a comma, in so many digits at least; the end of it.
static inline char* put_six(char* at, uint32_t number, int least_digits) {
    const uint64_t digits = three_digits[number / THOUSAND] | three_digits[number % THOUSAND] << 24;
    // These count also where they are zero.
    const int n_zeros = __builtin_ctzll(digits | (uint64_t)1 << 8 * (6 - least_digits)) / 8;
    const uint64_t text = (digits | AS_TEXT) >> 8 * n_zeros;
    memcpy(at, &text, sizeof text);
    return at + 7 - n_zeros;
}

static inline char* put(char* at, uint32_t number) {
    if (number < MILLION) return put_six(at, number, 1);
    at = put_six(at, number / MILLION, 1) - 1;
    return put_six(at, number % MILLION, 6);
}

// The array; how long it is.
static Py_ssize_t write_ids(char* text, const char* ids, Py_ssize_t n_ids) {
    char* at = text;
    *at++ = '[';
    for (Py_ssize_t i = 0; i < n_ids; i++) {
        uint32_t id;
        memcpy(&id, ids + i * sizeof id, sizeof id);
        at = put(at, id);
    }
    at -= n_ids > 0;
    *at++ = ']';
    return at - text;
}

static PyObject* ids_json(PyObject* Py_UNUSED(module), PyObject* packed) {
    Py_buffer ids;
    if (PyObject_GetBuffer(packed, &ids, PyBUF_SIMPLE) < 0) return NULL;
    const Py_ssize_t n_ids = ids.len / 4;
    PyObject* text = PyBytes_FromStringAndSize(NULL, n_ids * MOST_BYTES + 2 + SPARE_BYTES);
    if (text != NULL) {
        PyThreadState* own = n_ids < LONG_IDS ? NULL : PyEval_SaveThread();
        const Py_ssize_t n_bytes = write_ids(PyBytes_AS_STRING(text), ids.buf, n_ids);
        if (own != NULL) PyEval_RestoreThread(own);
        _PyBytes_Resize(&text, n_bytes);
    }
    PyBuffer_Release(&ids);
    return text;
}

static PyMethodDef methods[] = {
    {"ids_json", ids_json, METH_O, "Packed little-endian uint32 as a JSON array."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "service.decimals",
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit_decimals(void) {
    for (uint64_t i = 0; i < THOUSAND; i++) three_digits[i] = i / 100 | i / 10 % 10 << 8 | i % 10 << 16;
    return PyModuleDef_Init(&definition);
}
