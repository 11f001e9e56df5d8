"""What a fitted calibrator can become: a file, a torch module, an ONNX model."""

from typing import Any

from sklearn.utils.validation import check_is_fitted

from skfedcal._files import as_path, write_whole
from skfedcal.calibrators import _persist

_OUTPUTS = ("proba", "log_proba", "label")
_DTYPES = ("float32", "float64")


class ExportMixin:
    """Ways out of Python for a calibrator."""

    classes_: Any

    def save(self, path):
        """Write the fitted calibrator as JSON, without pickle.

        Parameters
        ----------
        path : str or path-like
            File to write; replaced as a whole or not at all.

        See Also
        --------
        skfedcal.load : Reads it.
        skfedcal.export.json_schema : What the file looks like.
        """
        check_is_fitted(self)
        _persist.save(self, path)

    def to_torch(self, output="proba"):
        """Turn the fitted map into a torch module, to append to a net.

        Parameters
        ----------
        output : {'proba', 'log_proba', 'label'}, default='proba'
            Calibrated probabilities, their logarithm (for a loss), or the position in
            `classes_` of the most probable class.

        Returns
        -------
        module : torch.nn.Module
            Takes a tensor of rows of scores as `predict_proba` does, and returns one
            column per entry of `classes_`, in the type of its input. It has no
            parameters to train. Gradients flow through it; those of a table are 0.

        Notes
        -----
        It computes in float64 and agrees with `predict_proba` to rounding; after
        ``module.float()``, for devices that have no float64, to about 1e-6. It stays
        at float32 where the rest of a net is made ``half()``. Where a score lies on the
        edge of a bin to the last digit, it may fall on the other side. Scores are not
        validated: a row with nan or +inf comes out as nan.

        ``torch.export.export`` takes the module; ``torch.jit.script`` does not.

        Examples
        --------
        >>> import torch
        >>> from skfedcal import FedTempCalibrator
        >>> cal = FedTempCalibrator().fit([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]],
        ...                               [0, 1, 1])
        >>> net = torch.nn.Sequential(torch.nn.Linear(5, 2), cal.to_torch())
        >>> net(torch.zeros(3, 5)).sum(dim=1).detach()
        tensor([1., 1., 1.])
        """
        check_is_fitted(self)
        _check_choice("output", output, _OUTPUTS)
        try:
            from skfedcal.export._torch import Calibration
        except ImportError as error:
            raise ImportError(
                'to_torch needs torch. Run: pip install "skfedcal[torch]"'
            ) from error
        from skfedcal.calibrators.maps._describe import describe

        found = describe(self)
        return Calibration(found.graph, found.outputs[output].number)

    def to_onnx(self, path=None, *, dtype="float32"):
        """Turn the fitted map into an ONNX model.

        Parameters
        ----------
        path : str or path-like, default=None
            File to write as well; replaced as a whole or not at all.
        dtype : {'float32', 'float64'}, default='float32'
            Type of the input 'scores' and of the output 'probabilities'.

        Returns
        -------
        model : onnx.ModelProto
            With the input 'scores', rows as `predict_proba` takes them, and the outputs
            'label' and 'probabilities', one column per entry of `classes_`. Labels that
            are neither numbers nor texts become texts. The metadata say what was fitted
            and which privacy it had.

        Notes
        -----
        The model computes in float64 whatever its input, with opset 18, and agrees with
        `predict_proba` to rounding. Where a score lies on the edge of a bin to the last
        digit, it may fall on the other side. Scores are not validated: a row with nan
        or +inf has probabilities of nan.

        Examples
        --------
        >>> from skfedcal import FedTempCalibrator
        >>> cal = FedTempCalibrator().fit([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]],
        ...                               [0, 1, 1])
        >>> model = cal.to_onnx()
        >>> [output.name for output in model.graph.output]
        ['label', 'probabilities']
        """
        check_is_fitted(self)
        _check_choice("dtype", dtype, _DTYPES)
        path = None if path is None else as_path(path)
        try:
            import onnx  # noqa: F401
        except ImportError as error:
            raise ImportError(
                'to_onnx needs onnx. Run: pip install "skfedcal[onnx]"'
            ) from error
        from skfedcal.calibrators.maps._describe import describe
        from skfedcal.export._onnx import to_model

        found = describe(self)
        names = {"label": "label", "probabilities": "proba"}
        model = to_model(
            found.graph,
            {name: found.outputs[own].number for name, own in names.items()},
            self.classes_,
            dtype,
            _notes(self),
        )
        if path is not None:
            content = model.SerializeToString()
            write_whole(path, lambda stream: stream.write(content))
        return model


def _check_choice(name, value, choices):
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(choices)}.")


def _notes(calibrator):
    """Metadata of an exported model."""
    from skfedcal._version import __version__

    report = calibrator.privacy_
    return {
        "skfedcal": __version__,
        "estimator": type(calibrator).__name__,
        "input_type": calibrator.input_type,
        "privacy": repr(report),
    }
