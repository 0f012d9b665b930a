#include "kernels/cpu/vec16_scalar.h"

#include "kernels/cpu/elementwise_template.h"

namespace smartkv::kernels {

const ElementwiseKernels kElementwiseScalar{rms_norm_row, rope_heads,     range,        measure_codes,
                                            encode,       measure_levels, encode_levels};

}  // namespace smartkv::kernels
