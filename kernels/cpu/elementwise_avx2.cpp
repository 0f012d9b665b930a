#include "kernels/cpu/vec16_avx2.h"

#include "kernels/cpu/elementwise_template.h"

namespace smartkv::kernels {

const ElementwiseKernels kElementwiseAvx2{rms_norm_row, rope_heads,     range,        measure_codes,
                                          encode,       measure_levels, encode_levels};

}  // namespace smartkv::kernels
