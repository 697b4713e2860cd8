// In the place of cuDSS: the functions that the library calls, on memory of the processor, by dense Cholesky factors.
// What it is not given as documented it refuses (3, "invalid value"). It counts what is made and executed.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {
enum { INVALID = 3, INT32 = 10, FLOAT64 = 1, SPD = 3, UPPER = 2, BATCH_SIZE = 18, ANALYSIS = 3, FACTORIZATION = 4, SOLVE = 1008 };

struct Config { int batch = 1; };
struct Csr { int64_t n, entries; const int *begin, *column; const double* values; };
struct Dense { int64_t n; double* values; };
struct Data {
    int batch = 0, info = 0;
    Csr analysed{};
    std::vector<double> factors;
};
int alive = 0, counts[3] = {0, 0, 0}, version = 1, silent = 0;

// The factor of one matrix, by columns; 0, or one more than the first pivot that is not positive.
int factored(const Csr& a, const double* values, double* l) {
    const int64_t n = a.n;
    std::fill(l, l + n * n, 0.0);
    for (int64_t row = 0; row < n; row++)
        for (int k = a.begin[row]; k < a.begin[row + 1]; k++) {
            if (a.column[k] < row) return INVALID * 1000;
            l[row * n + a.column[k]] = values[k];  // column `row` of the lower triangle
        }
    int first = 0;
    for (int64_t j = 0; j < n; j++) {
        double pivot = l[j * n + j];
        for (int64_t k = 0; k < j; k++) pivot -= l[k * n + j] * l[k * n + j];
        if (!(pivot > 0) && !first) first = (int)j + 1;
        l[j * n + j] = std::sqrt(pivot);
        for (int64_t i = j + 1; i < n; i++) {
            double entry = l[j * n + i];
            for (int64_t k = 0; k < j; k++) entry -= l[k * n + i] * l[k * n + j];
            l[j * n + i] = entry / l[j * n + j];
        }
    }
    return first;
}
}  // namespace

extern "C" {
int substitute_alive() { return alive; }
int substitute_count(int phase) { return counts[phase == ANALYSIS ? 0 : phase == FACTORIZATION ? 1 : 2]; }
void substitute_reset() { std::memset(counts, 0, sizeof counts); }
void substitute_version(int major) { version = major; }
void substitute_silent(int yes) { silent = yes; }  // never tells of a pivot in a batch, as no library should

int cudssGetProperty(int which, int* value) { *value = which == 0 ? version : 0; return 0; }
int cudssCreate(void** handle) { *handle = new int(7); alive++; return 0; }
int cudssDestroy(void* handle) { delete (int*)handle; alive--; return 0; }
int cudssSetStream(void* handle, void*) { return *(int*)handle == 7 ? 0 : INVALID; }
int cudssConfigCreate(void** config) { *config = new Config; alive++; return 0; }
int cudssConfigDestroy(void* config) { delete (Config*)config; alive--; return 0; }
int cudssConfigSet(void* config, int what, const void* value, size_t bytes) {
    if (what != BATCH_SIZE || bytes != sizeof(int)) return INVALID;
    ((Config*)config)->batch = *(const int*)value;
    return 0;
}
int cudssDataCreate(void* handle, void** data) { *data = new Data; alive++; return *(int*)handle == 7 ? 0 : INVALID; }
int cudssDataDestroy(void* handle, void* data) { delete (Data*)data; alive--; return *(int*)handle == 7 ? 0 : INVALID; }
int cudssDataGet(void*, void* data, int what, void* value, size_t bytes, size_t* written) {
    if (what != 0 || bytes != sizeof(int)) return INVALID;
    *(int*)value = ((Data*)data)->info;
    *written = sizeof(int);
    return 0;
}
int cudssDataSet(void*, void* data, int what, const void* value, size_t bytes) {
    if (what != 0 || bytes != sizeof(int)) return INVALID;
    ((Data*)data)->info = *(const int*)value;
    return 0;
}
int cudssMatrixCreateCsr(void** matrix, int64_t rows, int64_t columns, int64_t entries, const void* begin, const void* end,
                         const void* column, const void* values, int offsets, int indices, int numbers, int kind,
                         int view, int base) {
    if (rows != columns || end || offsets != INT32 || indices != INT32 || numbers != FLOAT64) return INVALID;
    if (kind != SPD || view != UPPER || base != 0 || ((const int*)begin)[rows] != entries) return INVALID;
    *matrix = new Csr{rows, entries, (const int*)begin, (const int*)column, (const double*)values};
    alive++;
    return 0;
}
int cudssMatrixCreateDn(void** matrix, int64_t rows, int64_t columns, int64_t leading, const void* values, int numbers,
                        int layout) {
    if (columns != 1 || leading != rows || numbers != FLOAT64 || layout != 0) return INVALID;
    *matrix = new Dense{rows, (double*)values};
    alive++;
    return 0;
}
int cudssMatrixDestroy(void* matrix) { ::operator delete(matrix); alive--; return 0; }

int cudssExecute(void* handle, int phase, const void* given, void* known, const void* a, void* x, const void* b) {
    if (*(int*)handle != 7) return INVALID;
    const Config& config = *(const Config*)given;
    Data& data = *(Data*)known;
    const Csr& matrix = *(const Csr*)a;
    const int64_t n = matrix.n, square = n * n;
    if (phase == ANALYSIS) {
        counts[0]++;
        data.batch = config.batch;
        data.analysed = matrix;
        return 0;
    }
    if (data.batch != config.batch || data.analysed.values != matrix.values) return INVALID;
    if (phase == FACTORIZATION) {
        counts[1]++;
        data.factors.resize(square * data.batch);
        for (int k = 0; k < data.batch; k++) {
            const int found = factored(matrix, matrix.values + k * matrix.entries, data.factors.data() + k * square);
            if (found && !data.info && !(silent && data.batch > 1)) data.info = found;
        }
        return 0;
    }
    if (phase != SOLVE || data.factors.empty()) return INVALID;
    counts[2]++;
    for (int problem = 0; problem < data.batch; problem++) {
        const double* l = data.factors.data() + problem * square;
        double* y = ((Dense*)x)->values + problem * n;
        std::copy_n(((const Dense*)b)->values + problem * n, n, y);
        for (int64_t j = 0; j < n; j++) {
            for (int64_t k = 0; k < j; k++) y[j] -= l[k * n + j] * y[k];
            y[j] /= l[j * n + j];
        }
        for (int64_t j = n - 1; j >= 0; j--) {
            for (int64_t k = j + 1; k < n; k++) y[j] -= l[j * n + k] * y[k];
            y[j] /= l[j * n + j];
        }
    }
    return 0;
}
}
