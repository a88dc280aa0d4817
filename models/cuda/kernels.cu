// All kernels, for one PTX file: tests/gpu/compile.sh.
#include "adamw.cu"
#include "dropout.cu"
#include "norm.cu"
#include "rows.cu"
#include "softmax.cu"
