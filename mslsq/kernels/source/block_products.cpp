// Products of block matrices with vectors; mslsq/linear/iterative/block_products.py describes the tables.
//
// Vectors are (entries, columns), `repeat` of them in turn for each matrix.

#include <algorithm>
#include <vector>

#include "export.h"
#include "sizes.h"

namespace mslsq {
namespace MSLSQ_TARGET {
namespace {

constexpr i64 LANES = 64;  // taken together: loops inside are along memory

// A row of a table of blocks: entry (r, c) is values[at + r by_row + c by_column].
struct Block {
    i64 row, column, height, width, at, by_row, by_column;
};

// y += A x; of diagonal blocks only the lower triangle is read.
template <class T>
void symmetric(i64 entries, i64 repeat, i64 columns, const T* values, i64 num_values, const T* x, T* y, i64 count,
               const Block* below, i64 diagonals, const Block* diagonal) {
    for (i64 b = 0; b < entries; b++) {
        const T *v = values + b / repeat * num_values, *p = x + b * columns;
        T* q = y + b * columns;
        for (i64 e = 0; e < count; e++) {
            const Block& block = below[e];
            with_size<3, 6>(block.width, [&](auto width) {
                const T *from = p + block.column, *row = v + block.at;
                T* mirrored_to = q + block.column;
                for (i64 r = 0; r < block.height; r++, row += width) {
                    T total = 0;
                    const T mirrored = p[block.row + r];
                    for (i64 c = 0; c < width; c++) {
                        total += row[c] * from[c];
                        mirrored_to[c] += row[c] * mirrored;
                    }
                    q[block.row + r] += total;
                }
            });
        }
        for (i64 e = 0; e < diagonals; e++) {
            const Block& block = diagonal[e];
            const i64 i = block.row;
            for (i64 r = 0; r < block.height; r++) {
                const T* row = v + block.at + r * block.height;
                const T mirrored = p[i + r];
                T total = row[r] * mirrored;
                for (i64 c = 0; c < r; c++) {
                    total += row[c] * p[i + c];
                    q[i + c] += row[c] * mirrored;
                }
                q[i + r] += total;
            }
        }
    }
}

// y += B x.
template <class T>
void rectangular(i64 entries, i64 repeat, i64 columns, i64 rows, const T* values, i64 num_values, const T* x, T* y,
                 i64 count, const Block* table) {
    for (i64 b = 0; b < entries; b++) {
        const T* v = values + b / repeat * num_values;
        for (i64 e = 0; e < count; e++) {
            const Block& block = table[e];
            const T* from = x + b * columns + block.column;
            T* to = y + b * rows + block.row;
            for (i64 r = 0; r < block.height; r++) {
                T total = 0;
                for (i64 c = 0; c < block.width; c++)
                    total += v[block.at + r * block.by_row + c * block.by_column] * from[c];
                to[r] += total;
            }
        }
    }
}

// own (tangent, LANES) = x on the columns of the lanes from `first` on.
template <class T>
void gather(const T* x, const i64* column, i64 tangent, i64 lanes, i64 first, i64 have, T* own) {
    for (i64 t = 0; t < tangent; t++)
        for (i64 k = 0; k < have; k++) own[t * LANES + k] = x[column[t * lanes + first + k]];
}

// image (LANES) = one row of blocks (tangent, lanes) times own (tangent, LANES).
template <class T>
void image_of(const T* line, i64 lanes, i64 tangent, i64 have, const T* own, T* image) {
    for (i64 k = 0; k < have; k++) image[k] = 0;
    for (i64 t = 0; t < tangent; t++)
        for (i64 k = 0; k < have; k++) image[k] += line[t * lanes + k] * own[t * LANES + k];
}

// y += J^T J x from blocks (rows, tangent, lanes) of J on these columns (tangent, lanes), flat from `start` on.
template <class T>
void by_jacobian(i64 entries, i64 repeat, i64 columns, const T* values, i64 num_values, i64 start, i64 rows, i64 tangent,
                 i64 lanes, const i64* column, const T* x, T* y) {
    std::vector<T> own(tangent * LANES), back(tangent * LANES);
    T image[LANES];
    for (i64 b = 0; b < entries; b++)
        for (i64 first = 0; first < lanes; first += LANES) {
            const i64 have = lanes - first < LANES ? lanes - first : LANES;
            const T* v = values + b / repeat * num_values + start + first;
            gather(x + b * columns, column, tangent, lanes, first, have, own.data());
            std::fill(back.begin(), back.end(), T(0));
            for (i64 r = 0; r < rows; r++, v += tangent * lanes) {
                image_of(v, lanes, tangent, have, own.data(), image);
                for (i64 t = 0; t < tangent; t++)
                    for (i64 k = 0; k < have; k++) back[t * LANES + k] += v[t * lanes + k] * image[k];
            }
            for (i64 t = 0; t < tangent; t++)
                for (i64 k = 0; k < have; k++)
                    y[b * columns + column[t * lanes + first + k]] += back[t * LANES + k];
        }
}

// y += H x from blocks (tangent, tangent, lanes) of H on these columns (tangent, lanes), flat from `start` on.
template <class T>
void by_hessian(i64 entries, i64 repeat, i64 columns, const T* values, i64 num_values, i64 start, i64 tangent, i64 lanes,
                const i64* column, const T* x, T* y) {
    std::vector<T> own(tangent * LANES);
    T image[LANES];
    for (i64 b = 0; b < entries; b++)
        for (i64 first = 0; first < lanes; first += LANES) {
            const i64 have = lanes - first < LANES ? lanes - first : LANES;
            const T* v = values + b / repeat * num_values + start + first;
            gather(x + b * columns, column, tangent, lanes, first, have, own.data());
            for (i64 r = 0; r < tangent; r++, v += tangent * lanes) {
                image_of(v, lanes, tangent, have, own.data(), image);
                for (i64 k = 0; k < have; k++) y[b * columns + column[r * lanes + first + k]] += image[k];
            }
        }
}

}  // namespace

#define MSLSQ_DEFINE(T, type)                                                                                       \
    MSLSQ_EXPORT(symmetric_product, type)                                                                           \
    (i64 entries, i64 repeat, i64 columns, const T* values, i64 num_values, const T* x, T* y, i64 count,            \
     const i64* below, i64 diagonals, const i64* diagonal) {                                                        \
        symmetric<T>(entries, repeat, columns, values, num_values, x, y, count,                                     \
                     reinterpret_cast<const Block*>(below), diagonals, reinterpret_cast<const Block*>(diagonal));   \
    }                                                                                                               \
    MSLSQ_EXPORT(block_product, type)                                                                               \
    (i64 entries, i64 repeat, i64 columns, i64 rows, const T* values, i64 num_values, const T* x, T* y, i64 count,  \
     const i64* table) {                                                                                            \
        rectangular<T>(entries, repeat, columns, rows, values, num_values, x, y, count,                             \
                       reinterpret_cast<const Block*>(table));                                                      \
    }                                                                                                               \
    MSLSQ_EXPORT(jacobian_product, type)                                                                            \
    (i64 entries, i64 repeat, i64 columns, const T* values, i64 num_values, i64 start, i64 rows, i64 tangent,       \
     i64 lanes, const i64* column, const T* x, T* y) {                                                              \
        by_jacobian<T>(entries, repeat, columns, values, num_values, start, rows, tangent, lanes, column, x, y);    \
    }                                                                                                               \
    MSLSQ_EXPORT(hessian_product, type)                                                                             \
    (i64 entries, i64 repeat, i64 columns, const T* values, i64 num_values, i64 start, i64 tangent, i64 lanes,      \
     const i64* column, const T* x, T* y) {                                                                         \
        by_hessian<T>(entries, repeat, columns, values, num_values, start, tangent, lanes, column, x, y);           \
    }

MSLSQ_DEFINE(double, f64)
MSLSQ_DEFINE(float, f32)

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
