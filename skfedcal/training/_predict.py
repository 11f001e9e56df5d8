"""Predictions of a classifier that has logits."""

from sklearn.base import ClassifierMixin

from skfedcal import _logits


class LogitsClassifierMixin(ClassifierMixin):
    """All predictions from `predict_logits`, which a subclass has."""

    def decision_function(self, X):
        """Logits as scikit-learn wants them.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Features.

        Returns
        -------
        logits : ndarray of shape (n_samples,) or (n_samples, n_classes)
            One column of log-odds when there are two classes.
        """
        logits = self.predict_logits(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X):
        """Class probabilities.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Features.

        Returns
        -------
        proba : ndarray of shape (n_samples, n_classes)
            One column per entry of `classes_`.
        """
        return _logits.softmax(self.predict_logits(X))

    def predict_log_proba(self, X):
        """Logarithm of the class probabilities.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Features.

        Returns
        -------
        log_proba : ndarray of shape (n_samples, n_classes)
            One column per entry of `classes_`.
        """
        return _logits.log_softmax(self.predict_logits(X))

    def predict(self, X):
        """Most probable class of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Features.

        Returns
        -------
        labels : ndarray of shape (n_samples,)
            Entries of `classes_`.
        """
        # Before `classes_` is read: an unfitted estimator must say so.
        logits = self.predict_logits(X)
        return self.classes_[logits.argmax(axis=1)]
